"""Garbage collection while a strategy runs bundles."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

__all__ = ["fewer_collections"]

_YOUNG_OBJECTS: Final = 10_000
"""New objects at which Python looks for garbage: those of some calls in flight."""


@contextmanager
def fewer_collections() -> Generator[None]:
    """Make garbage collection cheaper while the context is open.

    An answer of 256 tokens with log-probabilities has more containers than Python's 700 allocations
    between collections, and collections visited every module again and again: a quarter of the
    CPU time of a process with 128 agents (``tests/benchmark/bench_requests.py``). What lives at the
    start is left out until the end, and the others are visited after 10,000 allocations. A program
    that has set up its own garbage collection keeps it.
    """
    young, *older = gc.get_threshold()
    if not gc.isenabled() or young >= _YOUNG_OBJECTS or gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        gc.unfreeze()
