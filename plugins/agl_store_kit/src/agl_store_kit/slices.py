"""Long work in an event loop: in slices, between which other calls run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from time import perf_counter
from typing import Any, Final, TypeVar

__all__ = ["Pauses", "in_slices", "sorted_in_slices"]

T = TypeVar("T")
R = TypeVar("R")

_HELD_SECONDS: Final = 0.01
"""How long a task may hold the loop: nobody notices 10 ms, and 100 would be too long."""
_SLICE: Final = 500
"""Items that cost at most a few milliseconds."""
_RUN: Final = 100_000
"""Items that are sorted at once, in about 50 ms: shorter runs cost more in all."""


class Pauses:
    """Lets other calls run while one goes on. For one task."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = perf_counter()

    @property
    def due(self) -> bool:
        """Whether the task has held the loop long enough."""
        return perf_counter() - self._since > _HELD_SECONDS

    async def take(self) -> None:
        """Give the loop a turn if one is due."""
        if self.due:
            await asyncio.sleep(0)
            self._since = perf_counter()


async def in_slices(
    work: Callable[[Sequence[T]], Iterable[R]], items: Sequence[T], size: int = _SLICE
) -> list[R]:
    """Return ``list(work(items))``, computed slice by slice.

    Args:
        work: Maps some consecutive items to any number of results.
        items: All items; nobody may change the sequence meanwhile.
        size: Length of a slice.
    """
    if len(items) <= size:
        return list(work(items))
    results: list[R] = []
    pauses = Pauses()
    for at in range(0, len(items), size):
        results += work(items[at : at + size])
        await pauses.take()
    return results


async def sorted_in_slices(
    items: Sequence[T], key: Callable[[T], Any], *, descending: bool = False
) -> list[T]:
    """Return ``sorted(items, key=key, reverse=descending)``, which is stable, in slices.

    Sorts runs, and then pairs of runs as one list: Python's sort merges what is in order already.
    """
    if len(items) <= _SLICE:
        return sorted(items, key=key, reverse=descending)
    pauses = Pauses()
    runs: list[list[T]] = []
    for at in range(0, len(items), _RUN):
        runs.append(sorted(items[at : at + _RUN], key=key, reverse=descending))
        await pauses.take()
    while len(runs) > 1:
        merged: list[list[T]] = []
        for one, other in zip_longest(runs[::2], runs[1::2], fillvalue=()):
            merged.append(sorted([*one, *other], key=key, reverse=descending))
            await pauses.take()
        runs = merged
    return runs[0] if runs else []
