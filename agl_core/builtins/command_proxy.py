"""Registers ``agl proxy``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="proxy",
        target="agl_core.cli.proxy:proxy",
        summary="Serve an LLM proxy that records what agents and models say",
    )
