"""Registers ``agl doctor``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="doctor",
        target="agl_core.cli.doctor:doctor",
        summary="Say what is wrong here, and what to do",
    )
