"""How the memory store answers queries: by the index that fits, else by looking at all in scope.

Functions over the state, called under the store's lock; they return records that are not to be
mutated, with the number of matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from agl_core.errors import SpansEvictedError
from agl_core.store.encoded import EncodedSpan
from agl_core.store.memory.spans import SpanLog
from agl_core.store.memory.state import Entry, State
from agl_core.store.query import (
    check_page,
    compile_filter,
    cut,
    filter_options,
    run_query,
    sort_key,
)
from agl_core.types import Rollout, Span

__all__ = ["find_rollouts", "find_spans"]


def find_rollouts(
    state: State,
    *,
    status_in: Sequence[str] | None,
    rollout_id_in: Sequence[str] | None,
    rollout_id_contains: str | None,
    filter_logic: str,
    sort_by: str | None,
    sort_order: str,
    limit: int,
    offset: int,
) -> tuple[Sequence[Entry], int]:
    """Return a page of entries, and the number of matches."""
    check_page(limit, offset, sort_order)
    key = None if sort_by is None else sort_key(Rollout, sort_by)
    conditions: dict[str, Any] = {
        "status_in": status_in,
        "rollout_id_in": rollout_id_in,
        "rollout_id_contains": rollout_id_contains,
    }
    options = filter_options(logic=filter_logic, **conditions)
    entries = state.entries.values()
    given = {name for name, value in conditions.items() if value is not None}
    if not given and sort_by is None:
        stop = None if limit == -1 else offset + limit
        return list(islice(entries, offset, stop)), len(entries)
    if given <= {"status_in"}:
        statuses = None if status_in is None else frozenset(status_in)
        return state.indexes.page(
            entries, statuses, sort_by=sort_by, sort_order=sort_order, limit=limit, offset=offset
        )

    scope: Iterable[Entry] = entries
    if rollout_id_in is not None and (filter_logic == "and" or given == {"rollout_id_in"}):
        known = {state.entries[name] for name in rollout_id_in if name in state.entries}
        scope = sorted(known, key=lambda entry: entry.ordinal)
    matches = compile_filter(options)
    assert matches is not None
    found = [entry for entry in scope if matches(entry.rollout)]
    if key is not None:
        by: Callable[[Any], Any] = key
        found.sort(key=lambda entry: by(entry.rollout), reverse=sort_order == "desc")
    return cut(found, limit, offset), len(found)


def find_spans(
    state: State,
    rollout_id: str,
    attempt_id: str | None,
    filters: dict[str, Any],
    *,
    filter_logic: str,
    sort_by: str | None,
    sort_order: str,
    limit: int,
    offset: int,
) -> tuple[Sequence[EncodedSpan], int]:
    """Return a page of a rollout's spans, and the number of matches.

    Args:
        state: The state.
        rollout_id: Rollout.
        attempt_id: An id, ``"latest"``, or None for all attempts.
        filters: The optional filters of ``query_spans`` by name.
        filter_logic: How they combine.
        sort_by: Sort field, or None.
        sort_order: Direction.
        limit: Page size, -1 for all.
        offset: Matches to skip.

    Raises:
        SpansEvictedError: The rollout's spans were dropped.
    """
    check_page(limit, offset, sort_order)
    if sort_by is not None:
        sort_key(Span, sort_by)
    options = filter_options(logic=filter_logic, **filters)
    entry = state.entries.get(rollout_id)
    if entry is None:
        return (), 0
    if entry.evicted:
        raise SpansEvictedError(
            f"The spans of rollout {rollout_id} were evicted from memory; use a durable store, "
            "or raise eviction_memory_threshold"
        )
    if attempt_id == "latest":
        attempt_id = None if entry.latest is None else entry.latest.attempt_id
        if attempt_id is None:
            return (), 0
    if entry.spans is None:
        return (), 0
    scope, in_order = _scope(entry.spans, attempt_id, filters, filter_logic, sort_by)
    filtered = any(value is not None for value in filters.values())
    if in_order and not filtered and (sort_by is None or sort_order == "asc"):
        return cut(scope, limit, offset), len(scope)
    return run_query(
        scope,
        Span,
        options,
        sort_by=sort_by,
        sort_order=sort_order,
        limit=limit,
        offset=offset,
    )


_SEQUENCE: Final = "sequence_id"


def _scope(
    log: SpanLog,
    attempt_id: str | None,
    filters: dict[str, Any],
    filter_logic: str,
    sort_by: str | None,
) -> tuple[Sequence[EncodedSpan], bool]:
    """The spans to look at, and whether they are in the ascending order asked for."""
    span_id = filters["span_id"]
    alone = all(value is None for name, value in filters.items() if name != "span_id")
    if span_id is not None and (filter_logic == "and" or alone):
        return log.find(span_id, attempt_id), False
    if sort_by == _SEQUENCE:
        return log.ordered(attempt_id), True
    return log.arrived(attempt_id), sort_by is None
