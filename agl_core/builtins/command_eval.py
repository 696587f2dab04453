"""Registers ``agl eval``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="eval",
        target="agl_core.cli.eval:evaluate",
        summary="Score the agent that a file describes, changing nothing",
    )
