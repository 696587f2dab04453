"""A backend that keeps all values."""

from __future__ import annotations

import threading

from agl_core.metrics import Instrument, Metric, Metrics


class Held(Metrics):
    """Keeps the values of every series in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[tuple[str, ...], list[float]] = {}
        self.closed = 0
        self._lock = threading.Lock()

    def instrument(self, metric: Metric) -> Instrument:
        def keep(value: float, labels: tuple[str, ...]) -> None:
            with self._lock:
                self.values.setdefault((metric.name, *labels), []).append(value)

        return keep

    def close(self) -> None:
        self.closed += 1

    def names(self) -> set[str]:
        return {name for name, *_ in self.values}
