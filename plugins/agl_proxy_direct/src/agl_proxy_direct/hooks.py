"""Hooks of the direct proxy: the component ``proxy.direct`` and the command ``agl proxy``."""

from agl_core.plugins import CommandSpec, ComponentSpec, hookimpl


@hookimpl
def agl_proxy() -> ComponentSpec:
    return ComponentSpec(
        kind="proxy",
        name="direct",
        factory="agl_proxy_direct:DirectProxy",
        config="agl_proxy_direct.config:DirectProxyConfig",
        capabilities=frozenset({"streaming", "token_ids", "translation"}),
        summary="To servers that speak OpenAI's or Anthropic's protocols, with exact capture",
    )


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="proxy",
        target="agl_proxy_direct.cli:proxy",
        summary="Serve an LLM proxy that records what agents and models say",
    )
