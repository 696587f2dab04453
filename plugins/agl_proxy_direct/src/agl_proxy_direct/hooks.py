"""Hooks of the direct proxy: the proxy, its providers, and the command ``agl proxy``."""

from agl_core.plugins import CommandSpec, ComponentSpec, ProviderSpec, hookimpl


@hookimpl
def agl_proxy() -> ComponentSpec:
    return ComponentSpec(
        kind="proxy",
        name="direct",
        factory="agl_proxy_direct:DirectProxy",
        config="agl_proxy_direct:DirectProxyConfig",
        capabilities=frozenset({"streaming", "token_ids", "translation"}),
        summary="LLM proxy for servers of OpenAI's and Anthropic's protocols, with exact capture",
        api=1,
    )


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="proxy",
        target="agl_proxy_direct.cli:proxy",
        summary="Serve an LLM proxy that records model calls",
        api=1,
    )


@hookimpl
def agl_provider() -> list[ProviderSpec]:
    openai_like = ("chat", "completions", "embeddings")
    return [
        ProviderSpec(
            name="hosted_vllm",
            # vLLM also serves /responses and /messages, but without token ids, so these are
            # translated to chat.
            protocols=openai_like,
            token_ids=True,
            logprobs=True,
            stream_usage=True,
            summary="vLLM, or another server that returns token ids as vLLM does",
            api=1,
        ),
        ProviderSpec(
            name="openai",
            protocols=(*openai_like, "responses"),
            api_base="https://api.openai.com/v1",
            key_variable="OPENAI_API_KEY",
            base_variable="OPENAI_BASE_URL",
            stream_usage=True,
            summary="OpenAI's API",
            api=1,
        ),
        ProviderSpec(
            name="anthropic",
            protocols=("messages",),
            api_base="https://api.anthropic.com",
            key_variable="ANTHROPIC_API_KEY",
            base_variable="ANTHROPIC_BASE_URL",
            auth="x-api-key",
            headers=(("anthropic-version", "2023-06-01"),),
            summary="Anthropic's API",
            api=1,
        ),
    ]
