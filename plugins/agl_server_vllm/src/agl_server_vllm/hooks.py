"""Declares the LLM server, the doctor's check and the command ``vllm``; each is imported on use."""

from __future__ import annotations

from agl_core.plugins import CheckSpec, CommandSpec, ComponentSpec, hookimpl


@hookimpl
def agl_llm_server() -> ComponentSpec:
    return ComponentSpec(
        kind="llm_server",
        name="vllm",
        factory="agl_server_vllm.server:VLLMServer",
        config="agl_server_vllm.config:VLLMConfig",
        capabilities=frozenset({"weights", "token_ids"}),
        summary="vLLM, in this environment or another",
        api=1,
    )


@hookimpl
def agl_check() -> CheckSpec:
    return CheckSpec(
        name="vllm",
        check="agl_server_vllm.check:check_versions",
        summary="Releases of vLLM that training cannot use",
        api=1,
    )


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="vllm",
        target="agl_server_vllm.command:vllm",
        summary="Serve a model with vLLM until Ctrl+C.",
        api=1,
    )
