"""Tracers: what turns the running of an agent into spans.

The OpenTelemetry tracer is imported when it is first used, so that emitters stay light.
"""

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_core.tracer._active import clear_active_tracer, get_active_tracer, set_active_tracer
from agl_core.tracer._base import Tracer
from agl_core.tracer._dummy import DummyTracer

if TYPE_CHECKING:
    from agl_core.tracer._otel import OtelTracer

__all__ = [
    "DummyTracer",
    "OtelTracer",
    "Tracer",
    "clear_active_tracer",
    "get_active_tracer",
    "set_active_tracer",
]

__getattr__, __dir__ = lazy_names(__name__, {"OtelTracer": "agl_core.tracer._otel"})
