"""Registers ``agl algorithm``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="algorithm",
        target="agl_core.cli.roles:algorithm",
        summary="Run the algorithm of a train file for runners elsewhere",
    )
