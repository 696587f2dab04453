"""Describes the built-in commands; entry points find it like any plugin's hooks."""

from __future__ import annotations

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="plugins",
            target="agl_core.cli._plugins:plugins",
            summary="List, describe and check plugins",
            api=1,
        ),
        CommandSpec(
            name="version",
            target="agl_core.cli._version:version",
            summary="Versions of the core, Python and the installed plugins",
            api=1,
        ),
    ]
