"""Queries that look at every rollout: on their records, outside of the lock, in slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from agl_core.types import Attempt, Rollout
from agl_store_kit import RolloutQuery, in_slices, sort_key, sorted_in_slices
from agl_store_kit.filters import FIGURES, compile_filter, cut

__all__ = ["Row", "all_must_hold", "scan"]

Row = tuple[Rollout, Attempt | None, Mapping[str, float | None], int]
"""A rollout, its latest attempt, its figures, and its place in the order of insertion."""

_ordinal = itemgetter(3)


def all_must_hold(query: RolloutQuery) -> bool:
    """Return whether each filter of a query must hold, not only one of several."""
    return query.filter_logic == "and" or len(query.conditions) <= 1


async def scan(rows: Sequence[Row], query: RolloutQuery) -> tuple[Sequence[Row], int]:
    """Return a page of the rows that match, and the number of matches.

    Args:
        rows: In insertion order; in any order if the query names ids. Those that have one of the
            ids, if every filter must hold.
        query: The query.
    """
    found: Sequence[Row] = await in_slices(_filter_of(query), rows)
    if query.rollout_id_in is not None:
        found = await sorted_in_slices(found, _ordinal)
    if (by := query.sort_by) is not None:

        def value(row: Row) -> Any:
            return row[2].get(by) if by in FIGURES else getattr(row[0], by)

        descending = query.sort_order == "desc"
        found = await sorted_in_slices(found, sort_key(Rollout, by, value), descending=descending)
    return cut(found, query.limit, query.offset), len(found)


def _filter_of(query: RolloutQuery) -> Callable[[Sequence[Row]], Sequence[Row]]:
    if not all_must_hold(query):
        matches = compile_filter(query.filter_options())
        assert matches is not None
        return lambda rows: [row for row in rows if matches(row[0])]
    part, modes = query.rollout_id_contains, query.mode_in
    statuses = None if query.status_in is None else frozenset(query.status_in)

    def keep(rows: Sequence[Row]) -> Sequence[Row]:
        if part is not None:
            rows = [row for row in rows if part in row[0].rollout_id]
        if modes is not None:
            rows = [row for row in rows if row[0].mode in modes]
        if statuses is not None:
            rows = [row for row in rows if row[0].status in statuses]
        return rows

    return keep
