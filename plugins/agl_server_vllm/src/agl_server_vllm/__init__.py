"""vLLM as an LLM server of agl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_server_vllm.config import VLLMConfig
    from agl_server_vllm.server import VLLMServer

__all__ = ["VLLMConfig", "VLLMServer"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "VLLMConfig": "agl_server_vllm.config",
        "VLLMServer": "agl_server_vllm.server",
    },
)
