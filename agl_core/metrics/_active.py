"""The active backends of this process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakSet

from agl_core.metrics._base import Metric, Metrics
from agl_core.plugins import add_listener, build_component, remove_listener

logger = logging.getLogger(__name__)

# Replaced as a whole and never changed in place, so that record() reads it without the lock.
_active: tuple[Metrics, ...] = ()
_failed: set[type[Metrics]] = set()
_lock = threading.Lock()
_recorders: WeakSet[Recorder] = WeakSet()
_listening: dict[str, object] = {}


def record(metric: Metric, value: float, *labels: str) -> None:
    """Record a value with every active backend.

    Never raises: the first error of a backend is logged, and its later ones are ignored.
    """
    for metrics in _active:
        try:
            # For hot paths: without the checks of `Metrics.record`.
            (metrics.instruments.get(metric) or metrics.find(metric))(value, labels)
        except Exception:
            if type(metrics) not in _failed:
                _failed.add(type(metrics))
                logger.exception("%s failed to record %s", type(metrics).__name__, metric.name)


class Recorder:
    """Records values under labels that are known beforehand; for hot paths.

    Attributes:
        record: Takes a value; None without an active backend.
    """

    __slots__ = ("__weakref__", "_labels", "_metric", "record")

    def __init__(self, metric: Metric, *labels: str) -> None:
        self._metric, self._labels = metric, labels
        with _lock:
            _recorders.add(self)
            self.connect()

    def connect(self) -> None:
        """Find the function for the backends that are active now; called when they change."""
        metric, labels = self._metric, self._labels

        def to_all(value: float) -> None:
            record(metric, value, *labels)

        quick = _active[0].bound(metric, labels) if len(_active) == 1 else None
        self.record: Callable[[float], None] | None = (quick or to_all) if _active else None


def is_recording() -> bool:
    """Return whether a backend is active; code that would measure time asks this first."""
    return bool(_active)


@contextmanager
def recording(*backends: Metrics) -> Generator[None]:
    """Make backends active in this process for a ``with`` block, and close them at its end.

    Backends that are active already stay so. A forked child starts without active backends. A
    backend that fails to close is logged.
    """
    with _lock:
        added = [backend for backend in backends if backend not in _active]
        _listen((*_active, *added))
        _switch((*_active, *added))
    try:
        yield
    finally:
        with _lock:
            left = tuple(backend for backend in _active if backend not in added)
            gone = _not_wanted(left)
        # The lock is free meanwhile: listeners process what is left, and they may record values.
        for name in gone:
            remove_listener(name)
        with _lock:
            _switch(tuple(backend for backend in _active if backend not in added))
        for backend in added:
            try:
                backend.close()
            except Exception:  # what it measured is no reason to fail
                logger.exception("%s failed to close", type(backend).__name__)


def _switch(active: tuple[Metrics, ...]) -> None:
    global _active
    _active = active
    for recorder in list(_recorders):
        recorder.connect()


def _listen(active: tuple[Metrics, ...]) -> None:
    for name, listener in _wanted(active).items():
        if name not in _listening:
            # What only adds up values needs no thread of its own.
            add_listener(listener, name, inline=listener is _lifecycle())
            _listening[name] = listener


def _not_wanted(active: tuple[Metrics, ...]) -> Sequence[str]:
    """Forget the listeners that no backend needs any more; return their names."""
    gone = _listening.keys() - _wanted(active)
    for name in gone:
        del _listening[name]
    return list(gone)


def _wanted(active: tuple[Metrics, ...]) -> dict[str, object]:
    listeners = [listener for backend in active for listener in backend.listeners()]
    if active:
        listeners.append(_lifecycle())
    return {f"agl-metrics-{id(listener):x}": listener for listener in listeners}


def _lifecycle() -> object:
    from agl_core.metrics import _lifecycle

    return _lifecycle


def build_tracker(spec: Any) -> tuple[Metrics, ...]:
    """Return the backends that a ``tracker`` describes: one, a list of them, or None.

    Raises:
        ConfigError: The description is wrong.
        PluginError: A backend that it names cannot be used.
    """
    if isinstance(spec, (list, tuple)):
        several = enumerate(cast("Sequence[Any]", spec))
        return tuple(build_component("metrics", one, path=f"tracker.{at}") for at, one in several)
    return () if spec is None else (build_component("metrics", spec, path="tracker"),)


def _forget() -> None:
    global _active, _lock
    _active, _lock = (), threading.Lock()
    for name in _listening:
        remove_listener(name)
    _listening.clear()
    for recorder in list(_recorders):
        recorder.connect()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
