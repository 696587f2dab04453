"""The built-in tracer ``otel``."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_tracer() -> ComponentSpec:
    return ComponentSpec(
        kind="tracer",
        name="otel",
        factory="agl_core.tracer.otel:OtelTracer",
        config="agl_core.tracer.config:OtelTracerConfig",
        summary="Everything OpenTelemetry sees, with any instrumentation library",
    )
