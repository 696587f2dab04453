"""The direct LLM proxy: requests go to model servers as they are, and every call becomes a span."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_proxy_direct.config import DirectProxyConfig
    from agl_proxy_direct.direct import DirectProxy

__all__ = [
    "DirectProxy",
    "DirectProxyConfig",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DirectProxy": "agl_proxy_direct.direct",
        "DirectProxyConfig": "agl_proxy_direct.config",
    },
)
