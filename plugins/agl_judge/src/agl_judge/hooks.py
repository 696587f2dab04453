"""Declares the command ``agl rescore``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="rescore",
        target="agl_judge.rescore_command:rescore",
        summary="Apply another scorer or judge to stored rollouts, running no agent",
        api=1,
    )
