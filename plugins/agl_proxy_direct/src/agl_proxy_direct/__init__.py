"""The direct LLM proxy: relays model calls to servers over HTTP and records each in a span.

The package also exports the parts of a proxy for other backends. Such a proxy is a subclass of
:class:`DirectProxy` with an :class:`UpstreamSpec`, which reads the model list and makes the
:class:`Upstream`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_proxy_direct.app import ProxyApp
    from agl_proxy_direct.backends import (
        Backend,
        ModelEntry,
        ModelParams,
        parse_model_list,
        providers,
        read_base_url,
        read_model_list,
        refuse_references,
        resolve_secret,
    )
    from agl_proxy_direct.config import DirectProxyConfig
    from agl_proxy_direct.errors import CallError, error_body
    from agl_proxy_direct.http_upstream import NOT_FORWARDED, HttpUpstream, response_headers
    from agl_proxy_direct.proxy import DirectProxy
    from agl_proxy_direct.upstream import (
        MAX_RESPONSE_BYTES,
        Upstream,
        UpstreamError,
        UpstreamRequest,
        UpstreamResponse,
        too_large,
    )
    from agl_proxy_direct.upstream_spec import UpstreamSpec

__all__ = [
    "MAX_RESPONSE_BYTES",
    "NOT_FORWARDED",
    "Backend",
    "CallError",
    "DirectProxy",
    "DirectProxyConfig",
    "HttpUpstream",
    "ModelEntry",
    "ModelParams",
    "ProxyApp",
    "Upstream",
    "UpstreamError",
    "UpstreamRequest",
    "UpstreamResponse",
    "UpstreamSpec",
    "error_body",
    "parse_model_list",
    "providers",
    "read_base_url",
    "read_model_list",
    "refuse_references",
    "resolve_secret",
    "response_headers",
    "too_large",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Backend": "agl_proxy_direct.backends",
        "CallError": "agl_proxy_direct.errors",
        "DirectProxy": "agl_proxy_direct.proxy",
        "DirectProxyConfig": "agl_proxy_direct.config",
        "HttpUpstream": "agl_proxy_direct.http_upstream",
        "MAX_RESPONSE_BYTES": "agl_proxy_direct.upstream",
        "ModelEntry": "agl_proxy_direct.backends",
        "NOT_FORWARDED": "agl_proxy_direct.http_upstream",
        "ModelParams": "agl_proxy_direct.backends",
        "ProxyApp": "agl_proxy_direct.app",
        "Upstream": "agl_proxy_direct.upstream",
        "UpstreamError": "agl_proxy_direct.upstream",
        "UpstreamRequest": "agl_proxy_direct.upstream",
        "UpstreamResponse": "agl_proxy_direct.upstream",
        "UpstreamSpec": "agl_proxy_direct.upstream_spec",
        "error_body": "agl_proxy_direct.errors",
        "parse_model_list": "agl_proxy_direct.backends",
        "providers": "agl_proxy_direct.backends",
        "read_base_url": "agl_proxy_direct.backends",
        "read_model_list": "agl_proxy_direct.backends",
        "refuse_references": "agl_proxy_direct.backends",
        "resolve_secret": "agl_proxy_direct.backends",
        "response_headers": "agl_proxy_direct.http_upstream",
        "too_large": "agl_proxy_direct.upstream",
    },
)
