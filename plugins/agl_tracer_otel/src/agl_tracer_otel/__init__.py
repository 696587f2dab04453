"""The default tracer: everything OpenTelemetry sees, and the calls of model clients.

Besides the tracer, this package exports what tracers for other instrumentation libraries are made
of: model calls described in other attributes (:class:`CallWriter`), spans that become current
between two callbacks (:func:`enter_span`), libraries instrumented when the agent imports them
(:func:`on_import`, :func:`acquire_instrumentor`), attributes that are computed when they are read
(:func:`set_attributes_later`), and copies of objects that outlive the call (:func:`to_jsonable`).

Modules are imported at first use, so that naming the tracer does not import OpenTelemetry.
"""

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_tracer_otel.call_writer import CallWriter, read_body
    from agl_tracer_otel.config import OtelTracerConfig
    from agl_tracer_otel.current import EnteredSpan, enter_span, live_context
    from agl_tracer_otel.exporter import silent_context
    from agl_tracer_otel.imports import on_import
    from agl_tracer_otel.instrument import (
        InstrumentationReport,
        Instrumentor,
        acquire_instrumentor,
        release_instrumentor,
    )
    from agl_tracer_otel.later import set_attributes_later
    from agl_tracer_otel.payload import to_jsonable
    from agl_tracer_otel.processor import current_recording
    from agl_tracer_otel.provider import get_tracer, get_tracer_provider
    from agl_tracer_otel.tracer import OtelTracer

__all__ = [
    "CallWriter",
    "EnteredSpan",
    "InstrumentationReport",
    "Instrumentor",
    "OtelTracer",
    "OtelTracerConfig",
    "acquire_instrumentor",
    "current_recording",
    "enter_span",
    "get_tracer",
    "get_tracer_provider",
    "live_context",
    "on_import",
    "read_body",
    "release_instrumentor",
    "set_attributes_later",
    "silent_context",
    "to_jsonable",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CallWriter": "agl_tracer_otel.call_writer",
        "EnteredSpan": "agl_tracer_otel.current",
        "InstrumentationReport": "agl_tracer_otel.instrument",
        "Instrumentor": "agl_tracer_otel.instrument",
        "OtelTracer": "agl_tracer_otel.tracer",
        "OtelTracerConfig": "agl_tracer_otel.config",
        "acquire_instrumentor": "agl_tracer_otel.instrument",
        "current_recording": "agl_tracer_otel.processor",
        "enter_span": "agl_tracer_otel.current",
        "get_tracer": "agl_tracer_otel.provider",
        "get_tracer_provider": "agl_tracer_otel.provider",
        "live_context": "agl_tracer_otel.current",
        "on_import": "agl_tracer_otel.imports",
        "read_body": "agl_tracer_otel.call_writer",
        "release_instrumentor": "agl_tracer_otel.instrument",
        "set_attributes_later": "agl_tracer_otel.later",
        "silent_context": "agl_tracer_otel.exporter",
        "to_jsonable": "agl_tracer_otel.payload",
    },
)
