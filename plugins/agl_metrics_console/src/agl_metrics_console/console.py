"""Metrics as lines of the log: rates, and percentiles of histograms."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field

from agl_core.metrics import Instrument, Metric, Metrics
from agl_core.plugins import ComponentConfig, configured_by

__all__ = ["ConsoleConfig", "ConsoleMetrics"]

logger = logging.getLogger(__name__)

_SAMPLES: Final = 1000
"""Values kept per series and second, for the percentiles."""


class ConsoleConfig(ComponentConfig):
    """Options of :class:`ConsoleMetrics`."""

    window_seconds: float = Field(default=60, gt=0)
    """Time over which rates and percentiles are taken."""
    log_interval_seconds: float = Field(default=10, gt=0)
    """Time between two lines."""
    group_level: int | None = Field(default=None, ge=0)
    """Number of labels that tell series apart, from the first one; None merges all."""


@dataclass(slots=True)
class _Second:
    start: float
    total: float = 0.0
    count: int = 0
    values: list[float] = field(default_factory=list[float])


class ConsoleMetrics(Metrics):
    """Logs one line with all metrics every few seconds while there is something to count."""

    @configured_by(ConsoleConfig)
    def __init__(self, config: ConsoleConfig) -> None:
        super().__init__()
        self._config = config
        self._clear()

    def _clear(self) -> None:
        self._series: dict[tuple[Metric, tuple[str, ...]], deque[_Second]] = {}
        self._next_line = time.monotonic() + self._config.log_interval_seconds
        self._lock = threading.Lock()

    def instrument(self, metric: Metric) -> Instrument:
        level = self._config.group_level or 0

        def keep(value: float, labels: tuple[str, ...]) -> None:
            now = time.monotonic()
            with self._lock:
                seconds = self._series.setdefault((metric, labels[:level]), deque())
                if not seconds or now - seconds[-1].start >= 1:
                    seconds.append(_Second(now))
                last = seconds[-1]
                last.count += 1
                last.total = value if metric.kind == "gauge" else last.total + value
                if metric.kind == "histogram" and last.count <= _SAMPLES:
                    last.values.append(value)
                line = self._line(now) if now >= self._next_line else ""
            if line:
                logger.info("%s", line)

        return keep

    def close(self) -> None:
        """Log the last line."""
        with self._lock:
            line = self._line(time.monotonic())
            self._series.clear()
        if line:
            logger.info("%s", line)

    def after_fork(self) -> None:
        super().after_fork()
        self._clear()

    def _line(self, now: float) -> str:
        self._next_line = now + self._config.log_interval_seconds
        oldest = now - self._config.window_seconds
        shown: list[str] = []
        for (metric, labels), seconds in list(self._series.items()):
            while seconds and seconds[0].start < oldest and metric.kind != "gauge":
                seconds.popleft()
            if seconds:
                name = metric.name + (f"{{{','.join(labels)}}}" if labels else "")
                shown.append(f"{name} {_summary(metric, seconds, now)}")
            else:
                del self._series[metric, labels]
        return "; ".join(sorted(shown))

    def __getstate__(self) -> dict[str, object]:
        return {"_config": self._config}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._clear()


def _summary(metric: Metric, seconds: deque[_Second], now: float) -> str:
    if metric.kind == "gauge":
        while len(seconds) > 1:
            seconds.popleft()
        return f"{seconds[0].total:.4g}"
    span = max(1.0, now - seconds[0].start)
    if metric.kind == "counter":
        return f"{sum(each.total for each in seconds) / span:.4g}/s"
    values = sorted(value for each in seconds for value in each.values)
    at = {p: values[min(len(values) - 1, len(values) * p // 100)] for p in (50, 95, 99)}
    rate = sum(each.count for each in seconds) / span
    return f"{rate:.4g}/s " + " ".join(f"p{p} {value:.3g}{metric.unit}" for p, value in at.items())
