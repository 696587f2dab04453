"""Garbage collection in processes with many short-lived objects."""

from __future__ import annotations

import gc
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["fewer_collections", "freeze_memory"]

_YOUNG_OBJECTS: Final = 10_000
"""New objects at which Python looks for garbage: those of some requests or calls in flight."""
_LONG_SECONDS: Final = 0.02
"""CPU time of a collection after which what it kept is not scanned again. A server may hold its
loop for 0.1 s."""
_OLDER: Final = (4, 1)
"""Collections of one generation before one of the next: a server scans 100,000 new objects at a
time, which takes 0.03 s. With Python's (10, 10) it would scan a million."""

_SHARE: Final = 0.05
"""Share of a program's time that collections before runs may take. One takes 0.2 s in a program
with a million objects, and a short run 0.01 s."""
_STARTED_SECONDS: Final = 1.0
"""CPU time of a program up to which it has only imported modules, which leave little garbage."""


class _LongCollections:
    """Freezes what a long collection kept, as a callback of the garbage collector.

    For servers, which Ctrl+C ends through a handler. A ``KeyboardInterrupt`` in a callback is lost.
    """

    def __init__(self) -> None:
        self._began = 0.0

    def __call__(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began > _LONG_SECONDS:
            gc.freeze()


_long_collections: Final = _LongCollections()


def freeze_memory() -> None:
    """Make garbage collection cheaper in a process that only serves, once it has started.

    The objects of the start-up live until the exit: they are never scanned again. New objects are
    scanned after 10,000 instead of 700 allocations, when those of most requests are gone: a store
    server stores 10 % more OTLP spans per CPU second (``tests/benchmark/bench_server.py``).

    What a server keeps grows: 100,000 rollouts in memory are 700,000 objects, and each collection
    of all of them held the loop for 0.3 s (``tests/benchmark/bench_heavy_requests.py``). So the
    objects that a long collection kept are not scanned again either. They still end with their last
    reference; only those in a cycle of references stay, which stored data never is.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *_OLDER)
    if _long_collections not in gc.callbacks:
        gc.callbacks.append(_long_collections)


class _Collector:
    """Collects garbage before runs, unless that would take much of the program's time."""

    def __init__(self) -> None:
        self.due = 0.0

    def collect(self) -> bool:
        """Collect if that is due; return whether little garbage is left."""
        began = time.monotonic()
        if began < self.due:
            return False
        if time.process_time() < _STARTED_SECONDS:
            return True
        gc.collect()
        ended = time.monotonic()
        self.due = ended + (ended - began) / _SHARE
        return True


_collector: Final = _Collector()


@contextmanager
def fewer_collections() -> Generator[None]:
    """Make garbage collection cheaper while the context is open.

    An answer of 256 tokens with log-probabilities has more containers than Python's 700 allocations
    between collections, and collections visited every module again and again: a quarter of the
    CPU time of a process with 128 agents (``tests/benchmark/bench_requests.py``). So new objects
    are scanned after 10,000 allocations, and what lives at the start is left out until the context
    ends. Objects that come later are always scanned: a program that trains has tensors in cycles of
    references.

    A collection at the start frees the model of the run before. It is skipped in a program that has
    just started: it would be a twentieth of the CPU time of a short ``agl train``. It is skipped,
    too, if the last one was a moment ago, as in a program with many short runs; then nothing is
    left out. A program that has set up its own garbage collection keeps it.
    """
    # No callback of the collector: a Ctrl+C that Python handles in one is lost.
    before = gc.get_threshold()
    if not gc.isenabled() or before[0] >= _YOUNG_OBJECTS or gc.get_freeze_count():
        yield
        return
    gc.set_threshold(_YOUNG_OBJECTS, *before[1:])
    try:
        if _collector.collect():
            gc.freeze()
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
