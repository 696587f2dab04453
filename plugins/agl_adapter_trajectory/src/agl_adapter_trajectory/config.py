"""Options of the trajectory adapter."""

from __future__ import annotations

from agl_adapters import CallConfig


class TrajectoryConfig(CallConfig):
    """Options of :class:`~agl_adapter_trajectory.TraceToTrajectory`."""
