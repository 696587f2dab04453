"""LLM servers: they serve the model that is being trained."""

from agl_core.llm_server._base import LLMServer
from agl_core.llm_server._behind import put_behind

__all__ = ["LLMServer", "put_behind"]
