"""The LLM proxy in front of LiteLLM's providers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_proxy_litellm.proxy import LiteLLMProxy

__all__ = ["LiteLLMProxy"]


def __getattr__(name: str) -> Any:
    if name == "LiteLLMProxy":
        from agl_proxy_litellm.proxy import LiteLLMProxy

        return LiteLLMProxy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
