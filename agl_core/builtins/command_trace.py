"""Registers ``agl trace``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="trace",
        target="agl_core.cli.trace:trace",
        summary="Show what happened in a rollout as a tree of its spans",
    )
