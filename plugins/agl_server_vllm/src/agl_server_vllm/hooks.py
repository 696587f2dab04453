"""What this plugin says about its LLM server; agl imports the rest when the server is built."""

from __future__ import annotations

from agl_core.plugins import CheckSpec, ComponentSpec, hookimpl


@hookimpl
def agl_llm_server() -> ComponentSpec:
    return ComponentSpec(
        kind="llm_server",
        name="vllm",
        factory="agl_server_vllm.server:VLLMServer",
        config="agl_server_vllm.config:VLLMConfig",
        capabilities=frozenset({"weights", "token_ids"}),
        summary="vLLM, in this environment or another",
    )


@hookimpl
def agl_check() -> CheckSpec:
    return CheckSpec(
        name="vllm",
        check="agl_server_vllm.check:check_versions",
        summary="Releases of vLLM that return no token ids",
    )
