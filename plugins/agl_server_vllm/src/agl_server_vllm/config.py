"""The server's options: the fields are the keyword arguments of VLLMServer."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["VLLMConfig"]


class VLLMConfig(BaseModel):
    """Options of :class:`~agl_server_vllm.server.VLLMServer`. Durations are seconds."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    path: str = Field(min_length=1, description="What vLLM loads: a folder, or a name on the hub")
    model: str | None = Field(
        default=None, min_length=1, description="Name that calls ask for; None is path's last part"
    )
    python: str | None = Field(
        default=None, description="Interpreter that has vLLM; None is the running one"
    )
    args: list[str] | dict[str, Any] = Field(
        default_factory=list,
        description='Further options of vLLM: words, or a table such as {"max-model-len" = 4096}',
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Further environment variables of vLLM"
    )
    host: str = Field(default="127.0.0.1", description="Interface to listen on")
    port: int = Field(default=0, ge=0, le=65535, description="0 takes a free one")
    insecure: bool = Field(
        default=False, description="Let a network reach vLLM and its routes for weights"
    )
    api_key: str | None = Field(default=None, description="Key that callers must show")
    lora: bool = Field(
        default=False, description="Whether new weights are LoRA adapters, or else whole models"
    )
    adapter: str | None = Field(default=None, description="LoRA adapter to begin with")
    max_lora_rank: int = Field(default=16, ge=1, description="Of adapters")
    max_loras: int = Field(default=1, ge=1, description="Adapters in one batch")
    strict_weights: bool = Field(
        default=True, description="Refuse whole models whose tensors are not the served ones"
    )
    start_timeout: float = Field(default=900.0, gt=0, description="Until it must be ready")
    stop_timeout: float = Field(default=30.0, ge=0, description="Between asking and killing")
    update_timeout: float = Field(
        default=600.0, gt=0, description="For calls in flight to end, and for weights to load"
    )
    log_file: str | None = Field(
        default=None, description="For what vLLM says; None is a temporary file"
    )
