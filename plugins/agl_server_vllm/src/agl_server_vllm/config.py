"""Options of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from agl_core.plugins import ComponentConfig
from agl_server_vllm.options import refuse_managed, words_of
from agl_serving import is_loopback

__all__ = ["VLLMConfig"]


class VLLMConfig(ComponentConfig):
    """Options of :class:`~agl_server_vllm.VLLMServer`. Durations are in seconds."""

    path: str | Path = Field(kw_only=False)
    """Model that vLLM loads: a folder, or a name on the hub."""
    model: str | None = Field(default=None, min_length=1)
    """Name that calls ask for; None is the last part of ``path``."""
    python: str | None = None
    """Interpreter that has vLLM; None is the running one."""
    args: Sequence[str] | Mapping[str, Any] = ()
    """Further options of vLLM, as words (``["--max-model-len", "4096"]``) or as a table
    (``{"max_model_len": 4096}``)."""
    env: Mapping[str, str] = Field(default_factory=dict[str, str])
    """Further environment variables of vLLM. Not ``VLLM_API_KEY``: it is ``api_key`` here."""
    host: str = "127.0.0.1"
    """Interface to listen on. Any other than loopback needs ``insecure``, because whoever reaches
    vLLM can also load other weights."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port; 0 takes a free one."""
    insecure: bool = Field(default=False, validate_default=True)
    """Allow a network to reach vLLM and its routes for weights."""
    api_key: str | None = None
    """Key that callers must send."""
    lora: bool = False
    """Whether new weights are LoRA adapters; otherwise they are whole models."""
    adapter: str | Path | None = None
    """First LoRA adapter; None starts with an adapter that changes nothing."""
    max_lora_rank: int = Field(default=16, ge=1)
    """Highest rank of an adapter."""
    max_loras: int = Field(default=1, ge=1)
    """Largest number of adapters in one batch."""
    strict_weights: bool = True
    """Refuse whole models whose tensors have other names or shapes than the served ones. Switch it
    off for models whose checkpoints vLLM renames."""
    start_timeout: float = Field(default=900.0, gt=0)
    """Seconds until vLLM must be ready, downloads included."""
    stop_timeout: float = Field(default=30.0, ge=0)
    """Seconds between asking vLLM to stop and killing it."""
    update_timeout: float = Field(default=600.0, gt=0)
    """Seconds for calls in flight to end before an update, and for the update."""
    log_file: str | Path | None = None
    """File for vLLM's output; None is a temporary file, which is kept if vLLM fails."""

    @field_validator("args")
    @classmethod
    def _refuse_own_options(
        cls, args: Sequence[str] | Mapping[str, Any]
    ) -> Sequence[str] | Mapping[str, Any]:
        refuse_managed(words_of(args))
        return args

    @field_validator("env")
    @classmethod
    def _refuse_own_variables(cls, env: Mapping[str, str]) -> Mapping[str, str]:
        if "VLLM_API_KEY" in env:
            raise ValueError("VLLM_API_KEY is set by the server's own option api_key")
        return env

    @field_validator("insecure")
    @classmethod
    def _keep_to_loopback(cls, insecure: bool, info: ValidationInfo) -> bool:
        host = info.data.get("host", "127.0.0.1")
        if not (insecure or is_loopback(host)):
            raise ValueError(
                f"on {host} anyone on the network could load other weights: put a proxy in front "
                "of it, or set insecure=True"
            )
        return insecure

    @field_validator("adapter")
    @classmethod
    def _adapter_needs_lora(
        cls, adapter: str | Path | None, info: ValidationInfo
    ) -> str | Path | None:
        if adapter is not None and not info.data.get("lora"):
            raise ValueError("needs lora=True")
        return adapter

    @property
    def served_name(self) -> str:
        """Name that calls ask for."""
        return self.model or Path(self.path).name

    @property
    def base_name(self) -> str:
        """Name of the model without an adapter."""
        return f"{self.served_name}-base" if self.lora else self.served_name

    @property
    def adapter_folder(self) -> Path | None:
        """Absolute folder of the first adapter; vLLM may run in another current folder."""
        return None if self.adapter is None else Path(self.adapter).absolute()

    @property
    def log_path(self) -> Path | None:
        """File for vLLM's output, as a path."""
        return None if self.log_file is None else Path(self.log_file)
