"""The built-in adapter ``trajectory``."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_adapter() -> ComponentSpec:
    return ComponentSpec(
        kind="adapter",
        name="trajectory",
        factory="agl_core.adapter.trajectory:TraceToTrajectory",
        config="agl_core.adapter.config:TrajectoryConfig",
        summary="Calls that continue each other token by token, as one row each",
    )
