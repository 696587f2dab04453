"""Several backends as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agl_core.metrics import Instrument, Metric, Metrics, build_tracker
from agl_core.plugins import ComponentConfig, configured_by

__all__ = ["MultiConfig", "MultiMetrics"]


class MultiConfig(ComponentConfig):
    """Options of :class:`MultiMetrics`."""

    metrics: Sequence[Any] = Field(min_length=1, kw_only=False)
    """The backends; each is a name, a table with a type, or an object."""


class MultiMetrics(Metrics):
    """Passes every value to several backends."""

    counts_histograms = True  # they do

    @configured_by(MultiConfig)
    def __init__(self, config: MultiConfig) -> None:
        super().__init__()
        self.backends = build_tracker(config.metrics)

    def instrument(self, metric: Metric) -> Instrument:
        def record_all(value: float, labels: tuple[str, ...]) -> None:
            for backend in self.backends:
                backend.record(metric, value, labels)

        return record_all

    def listeners(self) -> Sequence[object]:
        return [listener for backend in self.backends for listener in backend.listeners()]

    def close(self) -> None:
        for backend in self.backends:
            backend.close()
