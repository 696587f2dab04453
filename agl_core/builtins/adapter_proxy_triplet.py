"""The built-in adapter ``proxy-triplet``."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_adapter() -> ComponentSpec:
    return ComponentSpec(
        kind="adapter",
        name="proxy-triplet",
        factory="agl_core.adapter.proxy_triplet:LlmProxyTraceToTriplet",
        config="agl_core.adapter.config:ProxyTripletConfig",
        summary="One triplet per call that went through an LLM proxy",
    )
