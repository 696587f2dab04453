"""What a server was asked for, and how vLLM is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agl_server_vllm.installation import interpreter_environment

__all__ = ["Settings"]

_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for ``--max-lora-rank``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of :class:`~agl_server_vllm.server.VLLMServer`, which documents them."""

    path: str
    model: str
    python: str | None
    args: Sequence[str]
    env: Mapping[str, str]
    host: str
    port: int
    api_key: str | None
    lora: bool
    adapter: Path | None
    max_lora_rank: int
    max_loras: int
    strict_weights: bool
    start_timeout: float
    stop_timeout: float
    update_timeout: float
    log_file: Path | None

    @property
    def base_model(self) -> str:
        """Name of the model without an adapter."""
        return f"{self.model}-base" if self.lora else self.model

    def options(self, port: int, mark: str) -> list[str]:
        """Return vLLM's options.

        Args:
            port: Where to serve.
            mark: A further name of the model.
        """
        words = ["--host", self.host, "--port", str(port)]
        # The first name is the one that answers carry.
        words += ["--served-model-name", self.base_model, mark]
        if self.lora:
            rank = next((one for one in _RANKS if one >= self.max_lora_rank), self.max_lora_rank)
            words += ["--enable-lora", "--max-lora-rank", str(rank)]
            words += ["--max-loras", str(self.max_loras)]
        return [*words, *self.args]

    def environment(self, python: str) -> dict[str, str]:
        """Return the environment of vLLM under an interpreter."""
        env = interpreter_environment(python)
        env.setdefault("VLLM_NO_USAGE_STATS", "1")
        env["VLLM_SERVER_DEV_MODE"] = "1"
        env["PYTHONUNBUFFERED"] = "1"  # what it said last is to be in the log
        if self.lora:
            env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self.api_key is not None:
            env["VLLM_API_KEY"] = self.api_key  # the command line is for everyone to read
        return {**env, **self.env}
