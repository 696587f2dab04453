"""Adapters turn the spans of an attempt into training data; this is what one is written with.

Adapters, such as ``triplet``, are plugins.
"""

from typing import Any, Final

from agl_core.adapter._base import (
    Adapter,
    OtelTraceAdapter,
    TraceAdapter,
    TraceToTripletBase,
    read_reward,
)
from agl_core.adapter._call_rules import CallRule, RecordedCall
from agl_core.adapter._dialects import AgentName, Dialect, MessageShape
from agl_core.adapter._report import AdapterReport, Reason, Repair

__all__ = [
    "Adapter",
    "AdapterReport",
    "AgentName",
    "CallRule",
    "Dialect",
    "MessageShape",
    "OtelTraceAdapter",
    "Reason",
    "RecordedCall",
    "Repair",
    "TraceAdapter",
    "TraceToTripletBase",
    "read_reward",
]

_OF_0_3: Final = ("LlmProxyTraceToTriplet", "TraceToMessages", "TracerTraceToTriplet")


def __getattr__(name: str) -> Any:
    """Find the adapters of 0.3 under their old path."""
    if name not in _OF_0_3:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import agl_core

    return getattr(agl_core, name)
