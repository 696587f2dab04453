"""Registers ``agl plugins``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="plugins",
        target="agl_core.cli.plugins:plugins",
        summary="List, describe and check plugins",
    )
