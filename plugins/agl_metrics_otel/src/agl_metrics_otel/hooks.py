"""Hook of this package: the backend ``otel``."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_metrics() -> ComponentSpec:
    return ComponentSpec(
        kind="metrics",
        name="otel",
        factory="agl_metrics_otel:OtelMetrics",
        config="agl_metrics_otel:OtelMetricsConfig",
        summary="Metrics over OTLP to an OpenTelemetry collector",
        api=1,
    )
