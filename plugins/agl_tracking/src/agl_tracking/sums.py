"""The values that a process measured, as figures of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from agl_core.metrics import Instrument, Metric

__all__ = ["SHOWN", "Sums"]

SHOWN: Final = ("agl.attempts.", "agl.rollouts.", "agl.queue.", "agl.proxy.tokens")
"""Beginnings of the metrics that say something about a run; the rest is for operators."""


class Sums:
    """Adds up counters, averages histograms, keeps the last value of gauges. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[str, Callable[[], float]] = {}

    def instrument(self, metric: Metric) -> Instrument:
        """Return the function that records the values of a metric."""
        if not metric.name.startswith(SHOWN):
            return _ignore
        cells: dict[str, list[float]] = {}

        def record(value: float, labels: tuple[str, ...]) -> None:
            name = "/".join((metric.name, *labels))
            with self._lock:
                cell = cells.get(name)
                if cell is None:
                    cell = cells[name] = [0.0, 0]
                    self._read[name] = _reader(metric, cell)
                cell[0] = value if metric.kind == "gauge" else cell[0] + value
                cell[1] += 1

        return record

    def figures(self) -> dict[str, float]:
        """Return the figures so far, by name and labels."""
        with self._lock:
            return {name: read() for name, read in sorted(self._read.items())}


def _reader(metric: Metric, cell: list[float]) -> Callable[[], float]:
    if metric.kind == "histogram":
        return lambda: cell[0] / cell[1]
    return lambda: cell[0]


def _ignore(value: float, labels: tuple[str, ...]) -> None:
    """Drop a value."""
