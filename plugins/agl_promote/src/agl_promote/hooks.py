"""Declares the command ``agl promote``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="promote",
        target="agl_promote.cli:promote",
        summary="Make a prompt or policy live if a paired test shows that it is better",
        api=1,
    )
