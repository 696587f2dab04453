"""From the spans of an attempt to what an algorithm trains on."""

from agl_core.adapter._base import Adapter, OtelTraceAdapter, TraceAdapter, TraceToTripletBase
from agl_core.adapter._certificates import CertificateSummary
from agl_core.adapter._messages import TraceToMessages
from agl_core.adapter._proxy_triplet import LlmProxyTraceToTriplet
from agl_core.adapter._report import AdapterReport, Reason, Repair
from agl_core.adapter._trajectory import (
    BreakCause,
    Certificate,
    TraceToTrajectory,
    TrajectoryRow,
)
from agl_core.adapter._tree import CallRules, TraceTree
from agl_core.adapter._triplet import TracerTraceToTriplet

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
