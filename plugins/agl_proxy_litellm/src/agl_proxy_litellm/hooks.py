"""Hooks of the LiteLLM proxy and of the spans that LiteLLM writes."""

from agl_core.plugins import ComponentSpec, DialectSpec, hookimpl


@hookimpl
def agl_proxy() -> ComponentSpec:
    return ComponentSpec(
        kind="proxy",
        name="litellm",
        factory="agl_proxy_litellm.proxy:LiteLLMProxy",
        config="agl_proxy_direct.config:DirectProxyConfig",
        capabilities=frozenset({"streaming", "token_ids", "translation"}),
        summary="To the providers of LiteLLM, with exact capture",
    )


@hookimpl
def agl_dialect() -> DialectSpec:
    return DialectSpec(
        name="litellm",
        dialect="agl_proxy_litellm.dialect:LITELLM",
        summary="Spans of LiteLLM's OpenTelemetry callback",
    )
