"""Options of the server; importing this module imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["HFServerConfig"]


class HFServerConfig(BaseModel):
    """Options of :class:`~agl_server_hf.HFServer`. Durations are in seconds."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    path: str = Field(min_length=1, description="Folder of the model and its tokenizer")
    model: str | None = Field(
        default=None, min_length=1, description="Name that calls ask for; None: the folder's name"
    )
    host: str = Field(default="127.0.0.1", description="Interface to listen on")
    port: int = Field(default=0, ge=0, le=65535, description="Port; 0 takes a free one")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, …")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="auto: bfloat16 on a GPU, else float32"
    )
    max_model_len: int | None = Field(
        default=None,
        ge=2,
        description="Largest number of tokens of a prompt and its answer; None: the model's",
    )
    max_batch_size: int = Field(
        default=64, ge=1, description="Largest number of sequences in a batch"
    )
    chat_template: str | None = Field(
        default=None, description="Jinja text that replaces the tokenizer's chat template"
    )
    threads: int | None = Field(default=None, ge=1, description="PyTorch's threads on a CPU")
    seed: int | None = Field(default=None, description="Seed of the sampling")
    python: str | None = Field(
        default=None, description="Interpreter of another environment that has this package"
    )
    start_timeout: float = Field(
        default=300.0, gt=0, description="Seconds until the server must be ready"
    )
    update_timeout: float = Field(
        default=300.0, gt=0, description="Seconds until new weights must be loaded"
    )
    log_file: str | None = Field(
        default=None, description="File for the server's log; None: a temporary file"
    )

    @property
    def served_name(self) -> str:
        """Name that calls ask for."""
        return self.model or Path(self.path).absolute().name
