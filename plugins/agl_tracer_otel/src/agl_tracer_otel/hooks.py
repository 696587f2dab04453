"""Registers the tracer ``otel``."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_tracer() -> list[ComponentSpec]:
    return [
        ComponentSpec(
            kind="tracer",
            name="otel",
            factory="agl_tracer_otel:OtelTracer",
            config="agl_tracer_otel:OtelTracerConfig",
            summary="Everything OpenTelemetry sees, with any instrumentation library",
            api=1,
        )
    ]
