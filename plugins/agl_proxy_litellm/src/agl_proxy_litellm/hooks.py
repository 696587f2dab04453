"""Hooks of the LiteLLM proxy: ``proxy.litellm``, and the dialect of LiteLLM's own spans."""

from agl_core.plugins import ComponentSpec, DialectSpec, hookimpl


@hookimpl
def agl_proxy() -> ComponentSpec:
    return ComponentSpec(
        kind="proxy",
        name="litellm",
        factory="agl_proxy_litellm:LiteLLMProxy",
        config="agl_proxy_direct:DirectProxyConfig",
        capabilities=frozenset({"streaming", "token_ids", "translation"}),
        summary="LLM proxy for LiteLLM's providers, with exact capture",
        api=1,
    )


@hookimpl
def agl_dialect() -> DialectSpec:
    return DialectSpec(
        name="litellm",
        dialect="agl_proxy_litellm.dialect:LITELLM",
        summary="Spans of LiteLLM's OpenTelemetry callback",
        api=1,
    )
