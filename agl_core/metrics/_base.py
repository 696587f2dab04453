"""The contract of metrics backends.

::

    CALLS = Metric("counter", "shop.calls", "Calls of the shop.", ("status",))

    class Lines(Metrics):
        def instrument(self, metric):
            return lambda value, labels: print(metric.name, labels, value)

    Lines().record(CALLS, 1, ("OK",))
"""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias
from weakref import WeakValueDictionary

Instrument: TypeAlias = Callable[[float, tuple[str, ...]], None]
"""Records a value under label values, which are in the order of :attr:`Metric.labels`."""

# fmt: off
SECONDS_BUCKETS: Final = (
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01,
    0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 12.0,
    15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0,
)
# fmt: on
"""Upper bounds of the histograms of durations, in seconds; those of version 0.3."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


@dataclass(frozen=True, eq=False)
class Metric:
    """The definition of a metric; define it once, as a constant.

    Attributes:
        kind: A counter grows, a gauge is a last value, a histogram counts values in buckets.
        name: Words with dots between them: ``agl.store.latency``.
        description: One sentence.
        labels: Names of the labels.
        unit: ``s`` or ``tokens``, say; empty for counts.
        buckets: Upper bounds of a histogram, increasing.
        count: Name of a counter that a histogram has besides: the number of its values.

    Raises:
        ValueError: A name is malformed, or the bounds do not increase.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    description: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = SECONDS_BUCKETS
    count: str = ""

    def __post_init__(self) -> None:
        for name in (self.name, self.count or self.name, *self.labels):
            if not _NAME.fullmatch(name) or (name in self.labels and "." in name):
                raise ValueError(f"{name!r} is not a name of a metric or a label")
        if list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"{self.name}: the bounds of buckets must increase")

    def counter(self) -> Metric:
        """Return the counter of this histogram's values."""
        return Metric("counter", self.count, f"Number of {self.name}.", self.labels)

    def same_as(self, other: Metric) -> bool:
        """Return whether both definitions are equal."""
        return vars(self) == vars(other)


_all: Final[WeakValueDictionary[int, Metrics]] = WeakValueDictionary()
"""The backends of this process by their ids; a class of its own may have no hash."""


class Metrics(ABC):
    """A backend: receives the values of all metrics of a process.

    Thread-safe. An object pickles as its options: a copy in another process records what happens
    there, and a backend that merges processes does so itself.
    """

    def __init__(self) -> None:
        self.instruments: dict[Metric, Instrument] = {}
        self._opened: dict[str, Metric] = {}
        self._opening = threading.RLock()
        _all[id(self)] = self

    counts_histograms: ClassVar[bool] = False
    """Whether the instruments of histograms also keep their counters (:attr:`Metric.count`)."""

    @abstractmethod
    def instrument(self, metric: Metric) -> Instrument:
        """Return the function that records the values of a metric.

        Called once per metric; :func:`~agl_core.metrics.record` then calls the function alone. It
        is thread-safe, does not wait for I/O, and keeps the sum of a counter, the last value of a
        gauge, or the distribution of a histogram.

        Raises:
            ValueError: The backend cannot represent the metric.
        """

    def bound(self, metric: Metric, labels: tuple[str, ...]) -> Callable[[float], None] | None:
        """Return a quicker function for the values under these labels, or None; never raises.

        Valid until the backend is closed. The function is thread-safe and never raises.
        """
        return None

    def record(self, metric: Metric, value: float, labels: tuple[str, ...] = ()) -> None:
        """Record a value: an increment of a counter, or the value of a gauge or a histogram.

        Raises:
            ValueError: The number of labels is wrong, a counter would shrink, or another metric
                has this name.
        """
        if len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name} has the labels {metric.labels}, not {labels}")
        if value < 0 and metric.kind == "counter":
            raise ValueError(f"{metric.name} is a counter and cannot change by {value}")
        (self.instruments.get(metric) or self.find(metric))(value, labels)

    def find(self, metric: Metric) -> Instrument:
        """Return the function that records the values of a metric, made at the first call."""
        with self._opening:
            if metric not in self.instruments:
                first = self._opened.setdefault(metric.name, metric)
                if not first.same_as(metric):
                    raise ValueError(f"there are two different metrics {metric.name}")
                made = self.instruments.get(first) or self.instrument(first)
                if metric.count and first not in self.instruments and not self.counts_histograms:
                    made = _both(made, self.find(metric.counter()))
                self.instruments[first] = self.instruments[metric] = made
            return self.instruments[metric]

    def listeners(self) -> Sequence[object]:
        """Return the listeners to the run's events while the backend is active: here, itself."""
        return (self,)

    def close(self) -> None:  # noqa: B027 - a backend may keep nothing
        """Write or send what is buffered. Idempotent; called at the end of a run."""

    def after_fork(self) -> None:
        """Begin with nothing in a forked child: the values so far are the parent's.

        A thread of the parent may have held a lock, which nobody in the child releases: a backend
        with locks of its own makes new ones here.
        """
        Metrics.__init__(self)

    def __getstate__(self) -> dict[str, Any]:
        own = {"instruments", "_opened", "_opening"}
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Metrics.__init__(self)
        vars(self).update(state)


def _both(observe: Instrument, increment: Instrument) -> Instrument:
    def record(value: float, labels: tuple[str, ...]) -> None:
        observe(value, labels)
        increment(1, labels)

    return record


def _after_fork() -> None:
    for backend in list(_all.values()):
        backend.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
