"""The sums of all processes as metrics of the client library, which writes Prometheus' formats."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from agl_metrics_prometheus.metrics import FOLDER_VARIABLE
from agl_metrics_prometheus.totals import Series, all_totals, read_folder

__all__ = ["FolderCollector", "LiveCollector", "registry_of"]


logger = logging.getLogger(__name__)

_SAMPLED: Final = ("agl.queue.length", "agl.workers", "agl.workers.lost")
"""Gauges of what is so now: of a process that has ended they say nothing any more."""
_SAMPLED_SECONDS: Final = 60.0
"""How long a value of them counts: six samples, so one that waits for a slow store is no end."""


class LiveCollector(Collector):
    """The sums of this process and of those that share a folder with it."""

    def collect(self) -> Iterator[Any]:
        found: list[Series] = []
        for totals in all_totals():
            found += totals.copy()
            found += read_folder(totals.folder, without=totals.file)
        return families(found)


class FolderCollector(Collector):
    """The sums that processes wrote to a folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Any]:
        return families(read_folder(self._folder))


def registry_of(collector: Collector) -> Any:
    """Return a registry with our metrics and those that the program has in the client library."""
    registry = CollectorRegistry()
    registry.register(collector)
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        registry.register(REGISTRY)  # pyright: ignore[reportArgumentType] - it has `collect`
        return registry
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)  # the collector refuses one that is absent
    except OSError as error:
        logger.warning(
            "%s is not a folder; the page lacks what the program measures with the client library: "
            "%s",
            FOLDER_VARIABLE,
            error,
        )
    else:
        MultiProcessCollector(registry, folder)
    return registry


def families(found: Iterable[Series]) -> Iterator[Any]:
    """Merge the sums of processes and yield them, sorted by name."""
    merged: dict[str, Series] = {}
    for series in found:
        mine = merged.setdefault(series.metric.name, Series(series.metric))
        if mine.metric.same_as(series.metric):  # processes of another version may differ
            for labels, cell in series.cells.items():
                mine.merge(labels, cell)
    oldest = time.time() - _SAMPLED_SECONDS
    for name, series in sorted(merged.items()):
        if name in _SAMPLED:
            series.cells = {key: cell for key, cell in series.cells.items() if cell[1] >= oldest}
        if series.metric.count:
            counts = {labels: [sum(cell[1:])] for labels, cell in series.cells.items()}
            yield _family(Series(series.metric.counter(), counts))
        yield _family(series)


def _family(series: Series) -> Any:
    metric = series.metric
    name, text, labels = metric.name.replace(".", "_"), metric.description, metric.labels
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        bounds = [*map(str, metric.buckets), "+Inf"]
        for values, (total, *counts) in sorted(series.cells.items()):
            rows = list(zip(bounds, accumulate(counts), strict=True))
            histogram.add_metric(_clean(values), rows, total)
        return histogram
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(name, text, labels=labels)
    for values, cell in sorted(series.cells.items()):
        family.add_metric(_clean(values), cell[0])
    return family


def _clean(values: tuple[str, ...]) -> list[str]:
    # A lone surrogate has no UTF-8 and would make the whole page fail.
    return [value.encode("utf-8", "replace").decode() for value in values]
