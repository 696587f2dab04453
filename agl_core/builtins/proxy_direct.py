from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_proxy() -> ComponentSpec:
    return ComponentSpec(
        kind="proxy",
        name="direct",
        factory="agl_core.proxy.direct:DirectProxy",
        config="agl_core.proxy.config:DirectProxyConfig",
        capabilities=frozenset({"streaming", "token_ids", "translation"}),
        summary="To servers that speak OpenAI's or Anthropic's protocols, with exact capture",
    )
