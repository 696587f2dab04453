"""The door to the LiteLLM proxy."""

from agl_core.plugins import ComponentSpec, hookimpl


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
