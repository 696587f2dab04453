"""The contract of LLM proxies: an agent becomes trainable by changing one URL."""

from agl_core.proxy._base import LLMProxy

__all__ = ["LLMProxy"]
