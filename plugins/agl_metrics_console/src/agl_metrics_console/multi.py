"""Several backends as one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from pydantic import Field

from agl_core.metrics import Instrument, Metric, Metrics, build_tracker
from agl_core.plugins import ComponentConfig, configured_by

__all__ = ["MultiConfig", "MultiMetrics"]

logger = logging.getLogger(__name__)


class MultiConfig(ComponentConfig):
    """Options of :class:`MultiMetrics`."""

    metrics: Sequence[Any] = Field(min_length=1, kw_only=False)
    """The backends; each is a name, a table with a type, or an object."""


class MultiMetrics(Metrics):
    """Passes every value to several backends; the failure of one is logged and stops no other."""

    counts_histograms = True  # they do

    @configured_by(MultiConfig)
    def __init__(self, config: MultiConfig) -> None:
        super().__init__()
        self.backends = build_tracker(config.metrics)
        self._failed: set[int] = set()
        """Places of the backends whose failure was logged."""

    def instrument(self, metric: Metric) -> Instrument:
        def record_all(value: float, labels: tuple[str, ...]) -> None:
            for place, backend in enumerate(self.backends):
                try:
                    backend.record(metric, value, labels)
                except Exception:
                    if place not in self._failed:
                        self._failed.add(place)
                        name = type(backend).__name__
                        logger.exception("%s failed to record %s", name, metric.name)

        return record_all

    def listeners(self) -> Sequence[object]:
        return [listener for backend in self.backends for listener in backend.listeners()]

    def close(self) -> None:
        with ExitStack() as closing:  # closes all, even if one fails
            for backend in reversed(self.backends):
                closing.callback(backend.close)
