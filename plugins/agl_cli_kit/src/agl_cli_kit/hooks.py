"""Hooks of this plugin; agl imports a command when it is run, and bars when they are shown."""

from agl_core.plugins import CommandSpec, ProgressSpec, hookimpl


@hookimpl
def agl_command() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="plugins",
            target="agl_cli_kit.plugins_command:plugins",
            summary="List, describe and check plugins",
            api=1,
        ),
        CommandSpec(
            name="version",
            target="agl_cli_kit.version_command:version",
            summary="Versions of the core, Python and the installed plugins",
            api=1,
        ),
    ]


@hookimpl
def agl_progress() -> ProgressSpec:
    return ProgressSpec(
        name="rich",
        show="agl_cli_kit.progress:show",
        summary="Bars, one line for each piece of work",
        api=1,
    )
