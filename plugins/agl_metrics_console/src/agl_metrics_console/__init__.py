"""Metrics in the log, and several backends as one."""

from agl_metrics_console.console import ConsoleConfig, ConsoleMetrics
from agl_metrics_console.multi import MultiConfig, MultiMetrics

__all__ = ["ConsoleConfig", "ConsoleMetrics", "MultiConfig", "MultiMetrics"]
