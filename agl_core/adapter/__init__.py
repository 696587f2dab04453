"""Adapters: turn the spans of an attempt into training data."""

from agl_core.adapter._base import (
    Adapter,
    OtelTraceAdapter,
    TraceAdapter,
    TraceToTripletBase,
    read_reward,
)
from agl_core.adapter._call import ModelCall
from agl_core.adapter._certificates import CertificateSummary
from agl_core.adapter._dialects import AgentName, Dialect, MessageShape
from agl_core.adapter._messages import TraceToMessages
from agl_core.adapter._proxy_triplet import LlmProxyTraceToTriplet
from agl_core.adapter._report import AdapterReport, Reason, Repair
from agl_core.adapter._trajectory import (
    BreakCause,
    Certificate,
    TraceToTrajectory,
    TrajectoryRow,
    read_logprobs,
)
from agl_core.adapter._tree import VIRTUAL_ROOT, CallRules, TraceTree, by_start
from agl_core.adapter._triplet import TracerTraceToTriplet
from agl_core.adapter._vocabulary import is_model_call

__all__ = [
    "VIRTUAL_ROOT",
    "Adapter",
    "AdapterReport",
    "AgentName",
    "BreakCause",
    "CallRules",
    "Certificate",
    "CertificateSummary",
    "Dialect",
    "LlmProxyTraceToTriplet",
    "MessageShape",
    "ModelCall",
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
    "by_start",
    "is_model_call",
    "read_logprobs",
    "read_reward",
]
