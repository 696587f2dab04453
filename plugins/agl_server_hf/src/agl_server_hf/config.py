"""Options of the server; importing this module imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from agl_core.plugins import ComponentConfig

__all__ = ["HFServerConfig"]


class HFServerConfig(ComponentConfig):
    """Options of :class:`~agl_server_hf.HFServer`. Durations are in seconds."""

    path: str | Path = Field(kw_only=False)
    """Folder of the model and its tokenizer."""
    model: str | None = Field(default=None, min_length=1)
    """Name that calls ask for; None: the folder's name."""
    host: str = "127.0.0.1"
    """Interface to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port; 0 takes a free one."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda``, ``cuda:1``, …; ``auto`` is a GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the computation; ``auto`` is bfloat16 on a GPU, else float32."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Largest number of tokens of a prompt and its answer; None: the model's."""
    max_batch_size: int = Field(default=64, ge=1)
    """Largest number of sequences in a batch."""
    cache_tokens: int | None = Field(default=None, ge=64)
    """Number of tokens that the key-value cache has room for, in all sequences together. None:
    enough for a full batch of the longest sequences, in at most a quarter of the device's memory.
    """
    chat_template: str | None = None
    """Jinja text that replaces the tokenizer's chat template."""
    reasoning: bool = False
    """Whether chat answers have the text between ``<think>`` and ``</think>`` apart from their
    content, as ``reasoning_content``."""
    threads: int | None = Field(default=None, ge=1)
    """PyTorch's threads on a CPU; None: half of its cores, or ``OMP_NUM_THREADS``."""
    seed: int | None = None
    """Seed of the sampling."""
    python: str | None = None
    """Interpreter of another environment that has this package."""
    start_timeout: float = Field(default=300.0, gt=0)
    """Seconds until the server must be ready."""
    update_timeout: float = Field(default=300.0, gt=0)
    """Seconds until new weights must be loaded."""
    log_file: str | Path | None = None
    """File for the server's log; None: a temporary file."""

    @property
    def served_name(self) -> str:
        """Name that calls ask for."""
        return self.model or Path(self.path).absolute().name
