"""The adapter ``trajectory``: spans to rows of tokens, for training weights."""

from agl_adapter_trajectory.adapter import TraceToTrajectory
from agl_adapter_trajectory.breaks import BreakCause
from agl_adapter_trajectory.certificates import CertificateSummary, TrajectoryReport
from agl_adapter_trajectory.config import TrajectoryConfig
from agl_adapter_trajectory.graph import (
    GraphLink,
    MessageGraph,
    MessageNode,
    SampledAnswer,
)
from agl_adapter_trajectory.rows import Certificate, TrajectoryRow, read_logprobs

__all__ = [
    "BreakCause",
    "Certificate",
    "CertificateSummary",
    "GraphLink",
    "MessageGraph",
    "MessageNode",
    "SampledAnswer",
    "TraceToTrajectory",
    "TrajectoryConfig",
    "TrajectoryReport",
    "TrajectoryRow",
    "read_logprobs",
]
