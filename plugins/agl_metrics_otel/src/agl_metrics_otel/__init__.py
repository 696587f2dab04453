"""Metrics of agl over OTLP."""

from agl_metrics_otel.metrics import OtelMetrics, OtelMetricsConfig

__all__ = ["OtelMetrics", "OtelMetricsConfig"]
