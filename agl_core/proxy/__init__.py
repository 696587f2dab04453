"""LLM proxies: an agent becomes trainable by changing one URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core._lazy import lazy_names
from agl_core.proxy.base import LLMProxy

if TYPE_CHECKING:
    from agl_core.proxy.direct import DirectProxy

__all__ = ["DirectProxy", "LLMProxy"]

# Serving needs the HTTP client and the server; the contract does not.
__getattr__, __dir__ = lazy_names(__name__, {"DirectProxy": "agl_core.proxy.direct"})
