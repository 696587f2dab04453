"""The sums of one process, and the files in which processes share them.

A request of the store server takes 30 to 60 us of CPU time, so its metrics may take little more
than one. Recording a value appends it to a list, which needs no lock; hot paths hold the list's
``append`` itself. The lists are summed once a second. An ``array`` would hold less memory, but with
it the cheapest request took 1,470 instructions more for its two values.

The client library writes every value to a memory-mapped file when processes share metrics. For a
counter and a histogram that takes 3.6 us, and a request has two of each. Here values are summed in
memory, and a process writes its sums to a file once a second while they change.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet, WeakValueDictionary

from agl_core.ids import generate_id
from agl_core.metrics import Instrument, Metric

__all__ = ["Series", "Totals", "read_folder", "totals_of"]

logger = logging.getLogger(__name__)

_WRITE_SECONDS: Final = 1.0
"""Between two writes of the file: scrapes are further apart, and a kill loses no more."""
_SUFFIX: Final = ".agl.json"
_SORTED_TOGETHER: Final = 256
"""Values are sorted in parts of this many. All values of a second, sorted at once, take 1.7 times
as long."""


@dataclass(slots=True)
class Series:
    """The sums of a metric by label values.

    A cell is ``[sum]`` of a counter, ``[value, time]`` of a gauge, ``[sum, *counts]`` of a
    histogram, with one count per bucket and one for larger values.
    """

    metric: Metric
    cells: dict[tuple[str, ...], list[float]] = field(default_factory=dict)
    pending: dict[tuple[str, ...], list[float]] = field(default_factory=dict)
    """Values that are not in the cells yet."""

    def add(self, labels: tuple[str, ...], values: Sequence[float]) -> None:
        """Add values to a cell."""
        bounds = self.metric.buckets
        size = len(bounds) + 2 if self.metric.kind == "histogram" else 1
        cell = self.cells.setdefault(labels, [0.0] * size)
        cell[0] += sum(values)
        if size == 1:
            return
        for start in range(0, len(values), _SORTED_TOGETHER):
            part = sorted(values[start : start + _SORTED_TOGETHER])
            counted = 0
            while counted < len(part):
                place = bisect_left(bounds, part[counted])
                bound = bounds[place] if place < len(bounds) else math.inf
                end = bisect_right(part, bound, counted)
                cell[place + 1] += end - counted
                counted = end

    def merge(self, labels: tuple[str, ...], cell: list[float]) -> None:
        """Add a cell of another process; of gauges the latest counts."""
        mine = self.cells.setdefault(labels, cell)
        if mine is cell:
            return
        if self.metric.kind == "gauge":
            self.cells[labels] = max(mine, cell, key=lambda each: each[1])
        else:
            self.cells[labels] = [a + b for a, b in zip(mine, cell, strict=True)]


class Totals:
    """The sums of this process, and its file in a folder. Thread-safe.

    Args:
        folder: The folder that processes share.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._series: dict[str, Series] = {}
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._writer: threading.Timer | None = None
        self._users: WeakSet[object] = WeakSet()
        self._written: object = None
        self.file = self.folder / f"{os.getpid()}-{generate_id(6)}{_SUFFIX}"

    def after_fork(self) -> None:
        """Begin with nothing in a forked child: the sums so far are the parent's."""
        for series in self._series.values():
            series.cells.clear()
            series.pending.clear()
        self._start()

    def instrument(self, metric: Metric) -> Instrument:
        """Return the function that records the values of a metric.

        Raises:
            ValueError: Another metric has this name in Prometheus, which has no dots.
        """
        series = self._of(metric)
        if not series.metric.same_as(metric):
            raise ValueError(f"{metric.name} and {series.metric.name} have one name in Prometheus")
        pending = series.pending

        def keep(value: float, labels: tuple[str, ...]) -> None:
            series.cells[labels] = [value, time.time()]
            if self._writer is None:
                self._write_soon()

        def record(value: float, labels: tuple[str, ...]) -> None:
            values = pending.get(labels)
            if values is None:
                if len(labels) != len(metric.labels):
                    raise ValueError(f"{metric.name} has the labels {metric.labels}, not {labels}")
                values = pending.setdefault(labels, [])
            values.append(value)
            if self._writer is None:
                self._write_soon()

        return keep if metric.kind == "gauge" else record

    def bound(
        self, metric: Metric, labels: tuple[str, ...], user: object
    ) -> Callable[[float], None] | None:
        """Return the function that records values under these labels; None for a gauge.

        It is a list's ``append``, which starts no writer: until its user releases the sums or
        is gone, they are looked at once a second.
        """
        if metric.kind == "gauge" or len(labels) != len(metric.labels):
            return None
        self._users.add(user)
        self._write_soon()
        return self._of(metric).pending.setdefault(labels, []).append

    def release(self, user: object) -> None:
        """Note that a user of bound functions uses them no longer."""
        self._users.discard(user)

    def _of(self, metric: Metric) -> Series:
        return self._series.setdefault(metric.name.replace(".", "_"), Series(metric))

    def copy(self) -> list[Series]:
        """Return the sums."""
        with self._lock:
            copies: list[Series] = []
            for series in list(self._series.values()):
                for labels, values in list(series.pending.items()):
                    taken = values[:]
                    del values[: len(taken)]  # other threads append at the end
                    if taken:
                        series.add(labels, taken)
                cells = {labels: list(cell) for labels, cell in series.cells.copy().items()}
                copies.append(Series(series.metric, cells))
            return copies

    def _write_soon(self) -> None:
        with self._lock:
            if self._writer is not None:
                return
            self._writer = threading.Timer(_WRITE_SECONDS, self._tick)
            self._writer.name, self._writer.daemon = "agl-prometheus", True
            writer = self._writer
        writer.start()

    def _tick(self) -> None:
        self._writer = None  # values from here on are for the next write
        if self._users:
            self._write_soon()
        self.write()

    def write(self) -> None:
        """Write the sums, if they have changed, to the file, which is replaced as a whole."""
        with self._writing:
            rows = [
                {
                    "metric": [
                        *(m.kind, m.name, m.description, m.labels, m.unit, m.buckets, m.count)
                    ],
                    "cells": list(series.cells.items()),
                }
                for series in self.copy()
                if series.cells and (m := series.metric)
            ]
            if rows == self._written:
                return
            draft = self.file.with_suffix(".draft")
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                draft.write_text(json.dumps(rows))
                draft.replace(self.file)
                self._written = rows
            except OSError as error:
                logger.warning("metrics of this process are not shared: %s", error)


def read_folder(folder: Path, *, without: Path | None = None) -> Iterator[Series]:
    """Yield what the processes of a folder wrote, also those that have ended.

    Args:
        folder: The folder.
        without: The file of the process itself.
    """
    for file in sorted(folder.glob(f"*{_SUFFIX}")):
        if file == without:
            continue
        try:
            rows: list[dict[str, Any]] = json.loads(file.read_text())
            for row in rows:
                kind, name, description, labels, unit, buckets, count = row["metric"]
                metric = Metric(kind, name, description, tuple(labels), unit, tuple(buckets), count)
                yield Series(metric, {tuple(labels): cell for labels, cell in row["cells"]})
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s is left out: %r", file, error)


_all: Final[WeakValueDictionary[Path, Totals]] = WeakValueDictionary()
_all_lock = threading.Lock()


def totals_of(folder: Path) -> Totals:
    """Return the sums of this process for a folder; all who ask share them."""
    with _all_lock:
        totals = _all.get(folder)
        if totals is None:
            totals = _all[folder] = Totals(folder)
        return totals


def all_totals() -> list[Totals]:
    """Return the sums of this process for every folder."""
    with _all_lock:
        return list(_all.values())


def _after_fork() -> None:
    global _all_lock
    _all_lock = threading.Lock()
    for totals in all_totals():
        totals.after_fork()


_register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register is not None:
    _register(after_in_child=_after_fork)
