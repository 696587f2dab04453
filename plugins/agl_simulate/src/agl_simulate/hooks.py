"""Hooks of the simulator: the command ``agl simulate``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="simulate",
        target="agl_simulate.cli:simulate",
        summary="Predict the throughput of a cluster from recorded rollouts",
        api=1,
    )
