"""Hooks of this package: the command ``agl replay``, and the replayer of recorded rollouts."""

from agl_core.plugins import CommandSpec, ReplayerSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="replay",
        target="agl_replay.cli:replay",
        summary="Run an agent again on a recorded rollout",
        api=1,
    )


@hookimpl
def agl_replayer() -> ReplayerSpec:
    return ReplayerSpec(
        name="recorded",
        module="agl_replay.replayer",
        summary="Answers model calls from the recorded rollout",
        api=1,
    )
