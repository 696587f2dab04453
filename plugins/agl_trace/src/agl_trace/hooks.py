"""Hooks of the trace viewer: the command ``agl trace``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="trace",
        target="agl_trace.cli:trace",
        summary="Show a rollout as a tree of its spans",
    )
