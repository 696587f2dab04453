"""Garbage collection in processes with many short-lived objects."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

__all__ = ["fewer_collections", "freeze_memory"]

_YOUNG_OBJECTS: Final = 10_000
"""New objects at which Python looks for garbage: those of some requests or calls in flight."""


def freeze_memory() -> None:
    """Make garbage collection cheaper in a process that only serves, once it has started.

    The objects of the start-up live until the exit: they are never scanned again. New objects are
    scanned after 10,000 instead of 700 allocations, when those of most requests are gone: a store
    server stores 10 % more OTLP spans per CPU second (``tests/benchmark/bench_server.py``).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


@contextmanager
def fewer_collections() -> Generator[None]:
    """Make garbage collection cheaper while the context is open, as :func:`freeze_memory` does.

    An answer of 256 tokens with log-probabilities has more containers than Python's 700 allocations
    between collections, and collections visited every module again and again: a quarter of the
    CPU time of a process with 128 agents (``tests/benchmark/bench_requests.py``). A program that
    has set up its own garbage collection keeps it.
    """
    before = gc.get_threshold()
    if not gc.isenabled() or before[0] >= _YOUNG_OBJECTS or gc.get_freeze_count():
        yield
        return
    freeze_memory()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
