"""The contract of LLM proxies: an agent becomes trainable by changing one URL."""

from agl_core.proxy._base import LLMProxy
from agl_core.proxy._move import PROXY_PATIENCE, ProxyMove, proxy_move

__all__ = ["PROXY_PATIENCE", "LLMProxy", "ProxyMove", "proxy_move"]
