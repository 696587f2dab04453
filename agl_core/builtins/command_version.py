"""Registers ``agl version``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="version",
        target="agl_core.cli.version:version",
        summary="Versions of the core, Python and the installed plugins",
    )
