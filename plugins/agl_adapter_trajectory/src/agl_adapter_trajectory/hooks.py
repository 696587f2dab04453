"""Hooks of the adapter ``trajectory``."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_adapter() -> ComponentSpec:
    return ComponentSpec(
        kind="adapter",
        name="trajectory",
        factory="agl_adapter_trajectory.adapter:TraceToTrajectory",
        config="agl_adapter_trajectory.config:TrajectoryConfig",
        summary="Calls that continue each other token by token, as one row each",
        api=1,
    )
