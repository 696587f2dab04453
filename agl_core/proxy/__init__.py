"""LLM proxies: an agent becomes trainable by changing one URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_core.proxy.base import LLMProxy

if TYPE_CHECKING:
    from agl_core.proxy.direct import DirectProxy

__all__ = ["DirectProxy", "LLMProxy"]


def __getattr__(name: str) -> Any:
    # Serving needs the HTTP client and the server; the contract does not.
    if name == "DirectProxy":
        from agl_core.proxy.direct import DirectProxy

        return DirectProxy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
