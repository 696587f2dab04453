from .metrics import (
    OtelMetrics as OtelMetrics,
    OtelMetricsConfig as OtelMetricsConfig,
)
