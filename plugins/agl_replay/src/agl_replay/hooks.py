"""Hooks of this package: the command ``agl replay``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="replay",
        target="agl_replay.cli:replay",
        summary="Run an agent again on a recorded rollout",
        api=1,
    )
