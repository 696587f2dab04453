"""LLM servers: what serves the model that is being trained."""

from agl_core.llm_server.base import LLMServer

__all__ = ["LLMServer"]
