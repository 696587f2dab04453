"""From the spans of an attempt to what an algorithm trains on."""

from agl_core.adapter.base import Adapter, OtelTraceAdapter, TraceAdapter, TraceToTripletBase
from agl_core.adapter.certificates import CertificateSummary
from agl_core.adapter.messages import TraceToMessages
from agl_core.adapter.proxy_triplet import LlmProxyTraceToTriplet
from agl_core.adapter.report import AdapterReport, Reason, Repair
from agl_core.adapter.trajectory import (
    BreakCause,
    Certificate,
    TraceToTrajectory,
    TrajectoryRow,
)
from agl_core.adapter.tree import CallRules, TraceTree
from agl_core.adapter.triplet import TracerTraceToTriplet

__all__ = [
    "Adapter",
    "AdapterReport",
    "BreakCause",
    "CallRules",
    "Certificate",
    "CertificateSummary",
    "LlmProxyTraceToTriplet",
    "OtelTraceAdapter",
    "Reason",
    "Repair",
    "TraceAdapter",
    "TraceToMessages",
    "TraceToTrajectory",
    "TraceToTripletBase",
    "TraceTree",
    "TracerTraceToTriplet",
    "TrajectoryRow",
]
