"""What this plugin says about ``agl vllm``; agl imports the command when it is run."""

from __future__ import annotations

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="vllm",
        target="agl_server_vllm.command:vllm",
        summary="Serve a model with vLLM until Ctrl+C.",
    )
