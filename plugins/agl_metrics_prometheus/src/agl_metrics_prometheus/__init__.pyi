from .metrics import (
    PrometheusConfig as PrometheusConfig,
    PrometheusMetrics as PrometheusMetrics,
)
