"""Registers ``agl runner``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="runner",
        target="agl_core.cli.roles:runner",
        summary="Run the agent of a train file for an algorithm elsewhere",
    )
