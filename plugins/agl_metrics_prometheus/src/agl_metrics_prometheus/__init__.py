"""Metrics of agl for Prometheus.

Public names are imported on first use, since ``agl --help`` imports the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_metrics_prometheus.metrics import PrometheusConfig, PrometheusMetrics

__all__ = ["PrometheusConfig", "PrometheusMetrics"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "PrometheusConfig": "agl_metrics_prometheus.metrics",
        "PrometheusMetrics": "agl_metrics_prometheus.metrics",
    },
)
