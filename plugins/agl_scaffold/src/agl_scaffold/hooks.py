"""Hooks of the scaffold: the command ``agl plugins new``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="plugins.new",
        target="agl_scaffold.command:new",
        summary="Write a package with a working plugin and its tests",
        api=1,
    )
