"""Queries as SQL; they mean what :meth:`agl_core.store.LightningStore.query_rollouts` and its
siblings say.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic_core import to_json

from agl_core.store import EncodedSpan, StoredSpan
from agl_core.types import Attempt, ResourcesUpdate, RolloutStatus, Worker
from agl_store_kit import (
    AttemptQuery,
    Query,
    ResourcesQuery,
    RolloutQuery,
    RolloutRecord,
    SpanQuery,
    WorkerQuery,
)
from agl_store_kit.rows import (
    NULLABLE_STRINGS,
    UnreadableRecordError,
    attempt_from,
    record_from,
    resources_from,
    worker_from,
)
from agl_store_sqlite.columns import (
    ATTEMPT_COLUMNS,
    LATEST_ATTEMPT,
    LATEST_RESOURCES,
    RECORD_COLUMNS,
    RESOURCES_COLUMNS,
    WORKER_COLUMNS,
)
from agl_store_sqlite.schema import SPANS_PER_ROLLOUT

__all__ = [
    "count_spans_at_most",
    "find_attempts",
    "find_resources",
    "find_rollouts",
    "find_spans",
    "find_watched",
    "find_workers",
    "get_latest_attempt",
    "get_resources",
    "get_rollout",
    "get_worker",
    "rollout_statuses",
]

logger = logging.getLogger(__name__)
T = TypeVar("T")
_MANY: Final = 500
"""An ``IN`` of more values gets them as one JSON array: SQLite limits the parameters of a statement
to 32,766 (https://www.sqlite.org/limits.html#max_variable_number)."""
_COMMON: Final = 5
"""A status that more than one in this many rollouts have is common."""
_ORDINAL: Final = "(SELECT ordinal FROM rollouts WHERE rollout_id = ?)"
_NEVER_NULL: Final = frozenset({"r.start_time", "a.start_time", "create_time", "update_time"})


@dataclass(frozen=True, slots=True)
class _Where:
    """A WHERE clause and its parameters."""

    sql: str
    values: tuple[Any, ...]


def _where(query: Query, prefix: str = "", scope: Sequence[tuple[str, Any]] = ()) -> _Where:
    """Translate a query's filters.

    Args:
        query: The query.
        prefix: Alias of the table, with a dot.
        scope: Conditions that hold in any case, with their values.
    """
    values: list[Any] = [value for _, value in scope]
    pool: list[str] = []
    for field, conditions in query.filter_options().items():
        if field != "_aggregate":
            for operator, value in conditions.items():
                pool.append(_condition(prefix + field, operator, value, values))
    parts = [condition for condition, _ in scope]
    if pool:
        parts.append("(" + f" {query.filter_logic.upper()} ".join(pool) + ")")
    return _Where("WHERE " + " AND ".join(parts) if parts else "", tuple(values))


def _condition(column: str, operator: str, value: Any, values: list[Any]) -> str:
    if operator == "exact":
        values.append(value)
        return f"{column} = ?"
    if operator == "contains":
        values.append(value)
        return f"instr({column}, ?) > 0"
    members = list(value)
    if len(members) > _MANY:
        values.append(to_json(members).decode())
        return f"{column} IN (SELECT value FROM json_each(?))"
    values += members
    return f"{column} IN ({', '.join('?' * len(members))})"


def _order(query: Query, insertion: str, prefix: str = "") -> str:
    """Return the ORDER BY clause; equal keys keep insertion order in both directions."""
    if query.sort_by is None:
        return f"ORDER BY {insertion}"
    column, direction = prefix + query.sort_by, query.sort_order.upper()
    if query.sort_by.endswith("_time") and column not in _NEVER_NULL:
        # A missing time sorts as infinity. An index serves only an order without this.
        return f"ORDER BY {column} IS NULL {direction}, {column} {direction}, {insertion}"
    if query.sort_by in NULLABLE_STRINGS:
        return f"ORDER BY coalesce({column}, '') {direction}, {insertion}"
    return f"ORDER BY {column} {direction}, {insertion}"


def _select(
    connection: sqlite3.Connection,
    columns: str,
    source: str,
    where: _Where,
    order: str,
    query: Query,
    build: Callable[[Any], T],
) -> tuple[list[T], int]:
    rows = connection.execute(
        f"SELECT {columns} FROM {source} {where.sql} {order} LIMIT ? OFFSET ?",
        (*where.values, query.limit, query.offset),
    ).fetchall()
    total = _total(connection, rows, f"FROM {source} {where.sql}", where.values, query)
    return [build(row) for row in rows], total


def _total(
    connection: sqlite3.Connection,
    rows: Sequence[Any],
    matches: str,
    values: Sequence[Any],
    query: Query,
) -> int:
    """Return the number of all matches, of which a query gave a page of rows."""
    return len(rows) if _is_complete(rows, query) else _count(connection, matches, values)


def _is_complete(rows: Sequence[Any], query: Query) -> bool:
    """Whether a page holds all matches, so that nothing needs to be counted."""
    return query.offset == 0 and (query.limit == -1 or len(rows) < query.limit)


def _count(connection: sqlite3.Connection, matches: str, values: Sequence[Any]) -> int:
    return connection.execute(f"SELECT count(*) {matches}", values).fetchone()[0]


# -- rollouts --------------------------------------------------------------------------------------


def get_rollout(connection: sqlite3.Connection, rollout_id: str) -> RolloutRecord | None:
    """Return a rollout with its latest attempt."""
    row = connection.execute(
        f"SELECT {RECORD_COLUMNS} FROM rollouts r LEFT JOIN {LATEST_ATTEMPT} "
        "WHERE r.rollout_id = ?",
        (rollout_id,),
    ).fetchone()
    return None if row is None else record_from(row)


def find_rollouts(
    connection: sqlite3.Connection, query: RolloutQuery
) -> tuple[list[RolloutRecord], int]:
    """Return a page of rollouts with their latest attempts, and the number of all matches."""
    where, order = _hinted(connection, query), _order(query, "r.ordinal", "r.")
    matches = f"FROM rollouts r {where.sql}"
    # The inner query sorts ordinals, which the indexes hold, so only the page's rows are read.
    rows = connection.execute(
        f"SELECT {RECORD_COLUMNS} FROM rollouts r LEFT JOIN {LATEST_ATTEMPT} WHERE r.ordinal IN "
        f"(SELECT r.ordinal {matches} {order} LIMIT ? OFFSET ?) {order}",
        (*where.values, query.limit, query.offset),
    ).fetchall()
    if _is_complete(rows, query):
        total = len(rows)
    elif query.conditions.keys() <= {"status_in"}:
        total = _count_by_status(connection, query.status_in)
    else:
        total = _count(connection, matches, where.values)
    return [record_from(row) for row in rows], total


def _hinted(connection: sqlite3.Connection, query: RolloutQuery) -> _Where:
    """Return the WHERE clause of a query of rollouts, with the indexes not to use marked by ``+``.

    Without statistics SQLite takes an index of the filter and sorts all that match. An index in
    the order of the page is faster if it holds the mode, and if many rollouts have the status. It
    also takes that of one status before that of many ids, each of which has one rollout
    (https://www.sqlite.org/optoverview.html#disqualifying_where_clause_terms_using_unary_).
    """
    where = _where(query, "r.")
    if query.filter_logic != "and":
        return where
    sql, by_figure = where.sql, query.sort_by in ("reward", "duration")
    by_id = query.rollout_id_in is not None
    if by_id or by_figure or query.status_in is not None:
        sql = sql.replace("r.mode IN", "+r.mode IN")
    if by_id:
        sql = sql.replace("r.status IN", "+r.status IN")
    elif by_figure and query.status_in is not None:
        matching = _count_by_status(connection, query.status_in)
        if matching * _COMMON > _count_by_status(connection, None):
            sql = sql.replace("r.status IN", "+r.status IN")
    return _Where(sql, where.values)


def _count_by_status(connection: sqlite3.Connection, statuses: Iterable[str] | None) -> int:
    """Return how many rollouts have one of these statuses, or how many there are, for None."""
    names = ["rollouts"] if statuses is None else [f"rollouts.{status}" for status in set(statuses)]
    return connection.execute(
        "SELECT coalesce(sum(value), 0) FROM counters "
        f"WHERE name IN ({', '.join('?' * len(names))})",
        names,
    ).fetchone()[0]


def find_watched(connection: sqlite3.Connection) -> list[RolloutRecord]:
    """Return the rollouts that the watchdog watches, with their latest attempts.

    Rows that cannot be read are left out: they would stop the watchdog for all others.
    """
    rows = connection.execute(
        f"SELECT {RECORD_COLUMNS} FROM rollouts r LEFT JOIN {LATEST_ATTEMPT} WHERE r.watched = 1 "
        "ORDER BY r.ordinal"
    ).fetchall()
    found: list[RolloutRecord] = []
    for row in rows:
        try:
            found.append(record_from(row))
        except UnreadableRecordError as error:
            logger.error("Rollout %s cannot be read and is not watched: %s", row[0], error)
    return found


def rollout_statuses(
    connection: sqlite3.Connection, rollout_ids: Sequence[str]
) -> dict[str, RolloutStatus]:
    """Return the status of each of these rollouts that exists, in the order given."""
    found: dict[str, RolloutStatus] = {}
    for rollout_id in rollout_ids:
        row = connection.execute(
            "SELECT status FROM rollouts WHERE rollout_id = ?", (rollout_id,)
        ).fetchone()
        if row is not None:
            (found[rollout_id],) = row
    return found


# -- attempts, workers, resources ------------------------------------------------------------------


def get_latest_attempt(connection: sqlite3.Connection, rollout_id: str) -> Attempt | None:
    row = connection.execute(
        f"SELECT {ATTEMPT_COLUMNS} FROM rollouts r JOIN {LATEST_ATTEMPT} WHERE r.rollout_id = ?",
        (rollout_id,),
    ).fetchone()
    return None if row is None else attempt_from(row)


def get_worker(connection: sqlite3.Connection, worker_id: str) -> Worker | None:
    row = connection.execute(
        f"SELECT {WORKER_COLUMNS} FROM workers w WHERE w.worker_id = ?", (worker_id,)
    ).fetchone()
    return None if row is None else worker_from(row)


def get_resources(
    connection: sqlite3.Connection, resources_id: str | None
) -> ResourcesUpdate | None:
    """Return a snapshot by id, or the latest for None."""
    which = LATEST_RESOURCES if resources_id is None else "WHERE resources_id = ?"
    row = connection.execute(
        f"SELECT {RESOURCES_COLUMNS} FROM resources {which}",
        () if resources_id is None else (resources_id,),
    ).fetchone()
    return None if row is None else resources_from(row)


def find_attempts(connection: sqlite3.Connection, query: AttemptQuery) -> tuple[list[Attempt], int]:
    order = _order(query, "a.sequence_id", "a.")
    where = _where(query, scope=[(f"a.rollout = {_ORDINAL}", query.rollout_id)])
    return _select(connection, ATTEMPT_COLUMNS, "attempts a", where, order, query, attempt_from)


def find_workers(connection: sqlite3.Connection, query: WorkerQuery) -> tuple[list[Worker], int]:
    order = _order(query, "w.ordinal", "w.")
    where = _where(query, "w.")
    return _select(connection, WORKER_COLUMNS, "workers w", where, order, query, worker_from)


def find_resources(
    connection: sqlite3.Connection, query: ResourcesQuery
) -> tuple[list[ResourcesUpdate], int]:
    order = _order(query, "ordinal")
    where = _where(query)
    return _select(connection, RESOURCES_COLUMNS, "resources", where, order, query, resources_from)


# -- spans -----------------------------------------------------------------------------------------

_SORTED_BY_INDEX: Final = (None, "rollout_id", "sequence_id")
"""Orders of spans in which an index gives them, so that a page needs no sort."""


def find_spans(connection: sqlite3.Connection, query: SpanQuery) -> tuple[list[EncodedSpan], int]:
    """Return a page of a rollout's spans: one range of an index."""
    # All these spans have the same rollout_id, so sorting by it is insertion order.
    order = "ORDER BY ordinal" if query.sort_by == "rollout_id" else _order(query, "ordinal")
    scope = [(f"rollout = {_ORDINAL}", query.rollout_id)]
    if query.attempt_id is not None:
        scope.append(("attempt_id = ?", query.attempt_id))
    where = _where(query, scope=scope)
    # Reading all ten columns of a row takes three times as long as the JSON that holds them.
    if query.limit == -1 or query.sort_by in _SORTED_BY_INDEX:
        return _select(connection, "payload", "spans", where, order, query, _span_from)
    # The inner query sorts ordinals, so payloads are read and moved only for the page.
    matches = f"FROM spans {where.sql}"
    rows = connection.execute(
        "SELECT payload FROM spans WHERE ordinal IN "
        f"(SELECT ordinal {matches} {order} LIMIT ? OFFSET ?) {order}",
        (*where.values, query.limit, query.offset),
    ).fetchall()
    total = _total(connection, rows, matches, where.values, query)
    return [_span_from(row) for row in rows], total


def _span_from(row: tuple[bytes]) -> EncodedSpan:
    return StoredSpan(row[0])


def count_spans_at_most(connection: sqlite3.Connection, rollout_id: str) -> int:
    """Return a number that is not below the number of a rollout's spans; reads two rows."""
    (last,) = connection.execute(
        "SELECT max(s.ordinal) - r.ordinal * ?2 FROM rollouts r JOIN spans s "
        "ON s.ordinal > r.ordinal * ?2 AND s.ordinal < (r.ordinal + 1) * ?2 "
        "WHERE r.rollout_id = ?1",
        (rollout_id, SPANS_PER_ROLLOUT),
    ).fetchone()
    return last or 0
