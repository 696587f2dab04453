"""Tracers: they record the run of an agent as spans.

Besides the contract and the built-in tracers, this package exports building blocks of tracers for
other instrumentation libraries: spans that become current between two callbacks
(:func:`enter_span`), libraries instrumented when the agent imports them (:func:`on_import`,
:func:`acquire_instrumentor`), and copies of requests, responses and streams that outlive the call
(:func:`to_jsonable`, :class:`StreamRecord`).

Modules that need OpenTelemetry's SDK are imported at first use, so that emitters stay light.
"""

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_core.tracer._active import clear_active_tracer, get_active_tracer, set_active_tracer
from agl_core.tracer._base import Tracer
from agl_core.tracer._dummy import DummyTracer

if TYPE_CHECKING:
    from agl_core.tracer._config import DummyTracerConfig, OtelTracerConfig
    from agl_core.tracer._current import EnteredSpan, enter_span, live_context
    from agl_core.tracer._exporter import silent_context
    from agl_core.tracer._imports import on_import
    from agl_core.tracer._instrument import (
        InstrumentationReport,
        Instrumentor,
        acquire_instrumentor,
        release_instrumentor,
    )
    from agl_core.tracer._otel import OtelTracer
    from agl_core.tracer._payload import response_to_jsonable, to_jsonable
    from agl_core.tracer._processor import current_recording
    from agl_core.tracer._streams import RecordedManager, StreamRecord

__all__ = [
    "DummyTracer",
    "DummyTracerConfig",
    "EnteredSpan",
    "InstrumentationReport",
    "Instrumentor",
    "OtelTracer",
    "OtelTracerConfig",
    "RecordedManager",
    "StreamRecord",
    "Tracer",
    "acquire_instrumentor",
    "clear_active_tracer",
    "current_recording",
    "enter_span",
    "get_active_tracer",
    "live_context",
    "on_import",
    "release_instrumentor",
    "response_to_jsonable",
    "set_active_tracer",
    "silent_context",
    "to_jsonable",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DummyTracerConfig": "agl_core.tracer._config",
        "EnteredSpan": "agl_core.tracer._current",
        "InstrumentationReport": "agl_core.tracer._instrument",
        "Instrumentor": "agl_core.tracer._instrument",
        "OtelTracer": "agl_core.tracer._otel",
        "OtelTracerConfig": "agl_core.tracer._config",
        "RecordedManager": "agl_core.tracer._streams",
        "StreamRecord": "agl_core.tracer._streams",
        "acquire_instrumentor": "agl_core.tracer._instrument",
        "current_recording": "agl_core.tracer._processor",
        "enter_span": "agl_core.tracer._current",
        "live_context": "agl_core.tracer._current",
        "on_import": "agl_core.tracer._imports",
        "release_instrumentor": "agl_core.tracer._instrument",
        "response_to_jsonable": "agl_core.tracer._payload",
        "silent_context": "agl_core.tracer._exporter",
        "to_jsonable": "agl_core.tracer._payload",
    },
)
