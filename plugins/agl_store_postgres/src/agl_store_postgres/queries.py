"""Queries as SQL; they mean what :meth:`agl_core.store.LightningStore.query_rollouts` and its
siblings say.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from psycopg import errors

from agl_core.errors import StoreDataError
from agl_core.store import EncodedSpan, LightningStoreStatistics, StoredSpan
from agl_core.types import Attempt, ResourcesUpdate, RolloutStatus, Worker
from agl_store_kit import (
    AttemptQuery,
    Query,
    ResourcesQuery,
    RolloutQuery,
    RolloutRecord,
    SpanQuery,
    WorkerQuery,
    sortable_fields,
)
from agl_store_kit.rows import (
    ATTEMPT_FIELDS,
    NULLABLE_STRINGS,
    RESOURCES_FIELDS,
    ROLLOUT_FIELDS,
    WORKER_FIELDS,
    attempt_from,
    columns,
    record_from,
    resources_from,
    worker_from,
)
from agl_store_postgres.columns import LATEST_RESOURCES, searchable
from agl_store_postgres.pool import Pool, Rows
from agl_store_postgres.schema import partition_of
from agl_store_postgres.transaction import LATEST_ATTEMPT, Statement, find_worker

__all__ = ["Queries"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

_RECORD: Final = f"{columns(ROLLOUT_FIELDS, 'r.')}, {columns(ATTEMPT_FIELDS, 'a.')}"
_ORDINAL: Final = "SELECT ordinal FROM @rollouts WHERE rollout_id = %s"


class Queries:
    """The reading calls.

    Args:
        pool: The connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    # -- one record ------------------------------------------------------------------------------

    async def rollout(self, rollout_id: str) -> RolloutRecord | None:
        rows = await self._pool.rows(
            f"SELECT {_RECORD} FROM @rollouts r LEFT JOIN {LATEST_ATTEMPT} WHERE r.rollout_id = %s",
            rollout_id,
        )
        return record_from(rows[0]) if rows else None

    async def latest_attempt(self, rollout_id: str) -> Attempt | None:
        rows = await self._pool.rows(
            f"SELECT {columns(ATTEMPT_FIELDS, 'a.')} FROM @rollouts r JOIN {LATEST_ATTEMPT} "
            "WHERE r.rollout_id = %s",
            rollout_id,
        )
        return attempt_from(rows[0]) if rows else None

    async def worker(self, worker_id: str) -> Worker | None:
        statement, values = find_worker(worker_id)
        rows = await self._pool.rows(statement, *values)
        return worker_from(rows[0]) if rows else None

    async def resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        """Return a snapshot by id, or the latest for None."""
        which = LATEST_RESOURCES if resources_id is None else "WHERE resources_id = %s"
        rows = await self._pool.rows(
            f"SELECT {columns(RESOURCES_FIELDS)} FROM @resources {which}",
            *(() if resources_id is None else (resources_id,)),
        )
        return resources_from(rows[0]) if rows else None

    async def statuses(self, rollout_ids: Sequence[str]) -> dict[str, RolloutStatus]:
        """Return the status of each of these rollouts that exists, in the order given."""
        rows = await self._pool.rows(
            "SELECT rollout_id, status FROM @rollouts WHERE rollout_id = ANY(%s)",
            list(rollout_ids),
        )
        found = dict(rows)
        return {name: found[name] for name in rollout_ids if name in found}

    # -- pages -----------------------------------------------------------------------------------

    async def rollouts(self, query: RolloutQuery) -> tuple[list[RolloutRecord], int]:
        where, values = _where(query)
        order = _order(query, "ordinal")
        # The page is cut before attempts are joined.
        page = f"SELECT * FROM @rollouts {where} {order} LIMIT %s OFFSET %s"
        rows = await self._pool.rows(
            f"SELECT {_RECORD} FROM ({page}) r LEFT JOIN {LATEST_ATTEMPT} "
            f"{_order(query, 'ordinal', 'r.')}",
            *(*values, *_page(query)),
        )
        total = await self._total(rows, query, "@rollouts", where, values)
        return [record_from(row) for row in rows], total

    async def attempts(self, query: AttemptQuery) -> tuple[list[Attempt], int]:
        where = _where(query, [(f"rollout = ({_ORDINAL})", query.rollout_id)])
        order = _order(query, "sequence_id")
        return await self._find("@attempts", ATTEMPT_FIELDS, where, order, query, attempt_from)

    async def workers(self, query: WorkerQuery) -> tuple[list[Worker], int]:
        order = _order(query, "ordinal")
        return await self._find("@workers", WORKER_FIELDS, _where(query), order, query, worker_from)

    async def snapshots(self, query: ResourcesQuery) -> tuple[list[ResourcesUpdate], int]:
        order = _order(query, "ordinal")
        return await self._find(
            "@resources", RESOURCES_FIELDS, _where(query), order, query, resources_from
        )

    async def spans(self, query: SpanQuery) -> tuple[list[EncodedSpan], int]:
        """Return a page of a rollout's spans: one range of an index of one partition."""
        rows = await self._pool.rows(_ORDINAL, query.rollout_id)
        if not rows:
            return [], 0
        ordinal = rows[0][0]
        scope = [("rollout = %s", ordinal)]
        if query.attempt_id is not None:
            scope.append(("attempt_id = %s", query.attempt_id))
        # All these spans have the same rollout_id, so sorting by it is insertion order.
        by_rollout = query.sort_by == "rollout_id"
        order = "ORDER BY ordinal" if by_rollout else _order(query, "ordinal")
        where = _where(query, scope)
        try:
            return await self._find(
                *(partition_of(ordinal), ("payload",), where, order, query),
                lambda row: StoredSpan(row[0]),
            )
        except errors.UndefinedTable:
            return [], 0  # none of the partition's rollouts has a span

    async def _find(
        self,
        table: str,
        fields: Sequence[str],
        where: Statement,
        order: str,
        query: Query,
        build: Callable[[Any], T],
    ) -> tuple[list[T], int]:
        condition, values = where
        rows = await self._pool.rows(
            f"SELECT {columns(fields)} FROM {table} {condition} {order} LIMIT %s OFFSET %s",
            *(*values, *_page(query)),
        )
        total = await self._total(rows, query, table, condition, values)
        return [build(row) for row in rows], total

    async def _total(
        self, rows: Rows, query: Query, table: str, condition: str, values: Sequence[Any]
    ) -> int:
        if query.offset == 0 and (query.limit == -1 or len(rows) < query.limit):
            return len(rows)  # the page holds all matches
        counted = await self._pool.rows(f"SELECT count(*) FROM {table} {condition}", *values)
        return counted[0][0]

    # -- the watchdog, statistics ----------------------------------------------------------------

    async def watched(self) -> list[RolloutRecord]:
        """Return the rollouts that the watchdog watches, with their latest attempts.

        Rows that cannot be read are left out: they would stop the watchdog for all others.
        """
        rows = await self._pool.rows(
            f"SELECT {_RECORD} FROM @rollouts r LEFT JOIN {LATEST_ATTEMPT} WHERE r.watched "
            "ORDER BY r.ordinal"
        )
        found: list[RolloutRecord] = []
        for row in rows:
            try:
                found.append(record_from(row))
            except StoreDataError as error:
                logger.error("Rollout %s cannot be read and is not watched: %s", row[0], error)
        return found

    async def statistics(self) -> LightningStoreStatistics:
        rows = await self._pool.rows(
            "SELECT (SELECT count(*) FROM @rollouts), count(*), coalesce(sum(spans), 0)::bigint, "
            "coalesce(sum(span_bytes), 0)::bigint, (SELECT count(*) FROM @resources), "
            "(SELECT count(*) FROM @workers) FROM @attempts"
        )
        rollouts, attempts, spans, span_bytes, resources, workers = rows[0]
        return {
            "total_rollouts": rollouts,
            "total_attempts": attempts,
            "total_spans": spans,
            "total_resources": resources,
            "total_workers": workers,
            "total_span_bytes": span_bytes,
        }


# -- clauses ---------------------------------------------------------------------------------------


def _where(query: Query, scope: Sequence[tuple[str, Any]] = ()) -> Statement:
    """Return a query's WHERE clause and its values.

    Args:
        query: The query.
        scope: Conditions that hold in any case, with their values.
    """
    parts = [condition for condition, _ in scope]
    values: list[Any] = [value for _, value in scope]
    pool: list[str] = []
    for field, conditions in query.filter_options().items():
        if field != "_aggregate":
            for operator, value in conditions.items():
                pool.append(_CONDITIONS[operator].format(field))
                values.append(searchable(value) if isinstance(value, str) else list(value))
    if pool:
        parts.append("(" + f" {query.filter_logic.upper()} ".join(pool) + ")")
    return "WHERE " + " AND ".join(parts) if parts else "", values


_CONDITIONS: Final = {
    "exact": "{} = %s",
    "within": "{} = ANY(%s::text[])",
    "contains": "strpos({}, %s) > 0",
}


def _order(query: Query, insertion: str, table: str = "") -> str:
    """Return the ORDER BY clause; equal keys keep insertion order in both directions."""
    if query.sort_by is None:
        return f"ORDER BY {table}{insertion}"
    # A missing time sorts as infinity: PostgreSQL, too, takes NULL for the largest value.
    column = table + query.sort_by
    if sortable_fields(query.model)[query.sort_by] == "" and query.sort_by in NULLABLE_STRINGS:
        column = f"coalesce({column}, '')"
    if sortable_fields(query.model)[query.sort_by] == -math.inf:
        nulls = "FIRST" if query.sort_order == "asc" else "LAST"
        return f"ORDER BY {column} {query.sort_order.upper()} NULLS {nulls}, {table}{insertion}"
    return f"ORDER BY {column} {query.sort_order.upper()}, {table}{insertion}"


def _page(query: Query) -> tuple[int | None, int]:
    return None if query.limit == -1 else query.limit, query.offset
