"""Tracers: they record the run of an agent as spans.

Besides the contract and the built-in tracers, this package exports building blocks of tracers for
other instrumentation libraries: model calls described in other attributes (:class:`CallWriter`),
spans that become current between two callbacks (:func:`enter_span`), libraries instrumented when
the agent imports them (:func:`on_import`, :func:`acquire_instrumentor`), and copies of objects that
outlive the call (:func:`to_jsonable`).

Modules that need OpenTelemetry's SDK are imported at first use, so that emitters stay light.
"""

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_core.tracer._active import clear_active_tracer, get_active_tracer, set_active_tracer
from agl_core.tracer._base import Tracer
from agl_core.tracer._dummy import DummyTracer

if TYPE_CHECKING:
    from agl_core.tracer._call_writer import CallWriter, read_body
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
    from agl_core.tracer._payload import to_jsonable
    from agl_core.tracer._processor import current_recording

__all__ = [
    "CallWriter",
    "DummyTracer",
    "DummyTracerConfig",
    "EnteredSpan",
    "InstrumentationReport",
    "Instrumentor",
    "OtelTracer",
    "OtelTracerConfig",
    "Tracer",
    "acquire_instrumentor",
    "clear_active_tracer",
    "current_recording",
    "enter_span",
    "get_active_tracer",
    "live_context",
    "on_import",
    "read_body",
    "release_instrumentor",
    "set_active_tracer",
    "silent_context",
    "to_jsonable",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CallWriter": "agl_core.tracer._call_writer",
        "DummyTracerConfig": "agl_core.tracer._config",
        "EnteredSpan": "agl_core.tracer._current",
        "InstrumentationReport": "agl_core.tracer._instrument",
        "Instrumentor": "agl_core.tracer._instrument",
        "OtelTracer": "agl_core.tracer._otel",
        "OtelTracerConfig": "agl_core.tracer._config",
        "acquire_instrumentor": "agl_core.tracer._instrument",
        "current_recording": "agl_core.tracer._processor",
        "enter_span": "agl_core.tracer._current",
        "live_context": "agl_core.tracer._current",
        "on_import": "agl_core.tracer._imports",
        "read_body": "agl_core.tracer._call_writer",
        "release_instrumentor": "agl_core.tracer._instrument",
        "silent_context": "agl_core.tracer._exporter",
        "to_jsonable": "agl_core.tracer._payload",
    },
)
