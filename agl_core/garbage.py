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


class _LongCollections:
    """Freezes what a long collection kept, as a callback of the garbage collector."""

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
    _scan_less()
    gc.set_threshold(_YOUNG_OBJECTS, *_OLDER)
    if _long_collections not in gc.callbacks:
        gc.callbacks.append(_long_collections)


def _scan_less() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


@contextmanager
def fewer_collections() -> Generator[None]:
    """Make garbage collection cheaper while the context is open.

    Like :func:`freeze_memory`, but objects that come later are always scanned: a program that
    trains has tensors in cycles of references.

    An answer of 256 tokens with log-probabilities has more containers than Python's 700 allocations
    between collections, and collections visited every module again and again: a quarter of the
    CPU time of a process with 128 agents (``tests/benchmark/bench_requests.py``). A program that
    has set up its own garbage collection keeps it.
    """
    before = gc.get_threshold()
    if not gc.isenabled() or before[0] >= _YOUNG_OBJECTS or gc.get_freeze_count():
        yield
        return
    _scan_less()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
