"""Queries that look at every rollout: in slices, each under the lock of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, Protocol

from agl_core.types import Attempt, Rollout
from agl_store_kit import RolloutQuery, in_slices, sort_key, sorted_in_slices
from agl_store_kit.filters import FIGURES, compile_filter, cut

__all__ = ["all_must_hold", "scan"]

_Row = tuple[Rollout, Attempt | None, Mapping[str, float | None]]
"""A rollout, its latest attempt, and its figures."""

_ordinal = attrgetter("ordinal")


class _Entry(Protocol):
    """What the store keeps of a rollout, and changes."""

    @property
    def rollout(self) -> Rollout: ...
    @property
    def latest(self) -> Attempt | None: ...
    @property
    def figures(self) -> Mapping[str, float | None]: ...
    @property
    def ordinal(self) -> int: ...


_Filter = Callable[[Sequence[_Entry]], Sequence[_Entry]]


def all_must_hold(query: RolloutQuery) -> bool:
    """Return whether each filter of a query must hold, not only one of several."""
    return query.filter_logic == "and" or len(query.conditions) <= 1


async def scan(
    entries: Sequence[_Entry], query: RolloutQuery, lock: AbstractContextManager[object]
) -> tuple[Sequence[_Row], int]:
    """Return a page of the rollouts that match, and the number of matches.

    Each is read once, as it is when its turn comes.

    Args:
        entries: In insertion order; in any order if the query names ids. Those that have one of the
            ids, if every filter must hold.
        query: The query.
        lock: Lock of the entries; it is held for one slice at a time.
    """
    keep = _filter_of(query)

    def read(part: Sequence[_Entry], keep: _Filter = keep) -> Sequence[_Row]:
        with lock:
            return [(one.rollout, one.latest, one.figures) for one in keep(part)]

    if query.rollout_id_in is not None and len(entries) > 1:
        entries = await sorted_in_slices(entries, _ordinal)
    if query.sort_by is None and query.status_in is None:
        chosen = await in_slices(keep, entries)
        return read(cut(chosen, query.limit, query.offset), list), len(chosen)
    found: Sequence[_Row] = await in_slices(read, entries)
    if (by := query.sort_by) is not None:

        def value(row: _Row) -> Any:
            return row[2].get(by) if by in FIGURES else getattr(row[0], by)

        descending = query.sort_order == "desc"
        found = await sorted_in_slices(found, sort_key(Rollout, by, value), descending=descending)
    return cut(found, query.limit, query.offset), len(found)


def _filter_of(query: RolloutQuery) -> _Filter:
    if not all_must_hold(query):
        matches = compile_filter(query.filter_options())
        assert matches is not None
        return lambda entries: [one for one in entries if matches(one.rollout)]
    part, modes = query.rollout_id_contains, query.mode_in
    statuses = None if query.status_in is None else frozenset(query.status_in)

    def keep(entries: Sequence[_Entry]) -> Sequence[_Entry]:
        if part is not None:
            entries = [one for one in entries if part in one.rollout.rollout_id]
        if modes is not None:
            entries = [one for one in entries if one.rollout.mode in modes]
        if statuses is not None:
            entries = [one for one in entries if one.rollout.status in statuses]
        return entries

    return keep
