"""Filters, sort orders and pages as SQL; they mean what :mod:`agl_core.store.filters` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from agl_core.store import EncodedSpan
from agl_core.store.filters import Page, filter_options, sort_key, sortable_fields
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
)
from agl_store_sqlite.records import (
    ATTEMPT_COLUMNS,
    ATTEMPTED,
    ATTEMPTED_COLUMNS,
    SPAN_COLUMNS,
    WORKER_COLUMNS,
    attempt_from,
    attempted_from,
    resources_from,
    span_from,
    worker_from,
)
from agl_store_sqlite.tables import ORDINAL, Tables

__all__ = [
    "find_attempts",
    "find_resources",
    "find_rollouts",
    "find_spans",
    "find_workers",
]

T = TypeVar("T")
_MANY: Final = 500
"""More values than this in an ``IN`` go through JSON, whose size SQLite does not bound."""


@dataclass(slots=True)
class Where:
    """A condition under construction."""

    must: list[str] = field(default_factory=list[str])
    pool: list[str] = field(default_factory=list[str])
    values: list[Any] = field(default_factory=list[Any])
    logic: str = "and"

    @classmethod
    def of(cls, logic: str, prefix: str = "", **conditions: Any) -> Where:
        """Translate conditions as :func:`agl_core.store.filters.filter_options` reads them."""
        where = cls(logic=logic)
        for name, operators in filter_options(logic=logic, **conditions).items():
            if name == "_aggregate":
                continue
            for operator, value in operators.items():
                where.pool.append(where._condition(prefix + name, operator, value))
        return where

    def _condition(self, column: str, operator: str, value: Any) -> str:
        if operator == "exact":
            self.values.append(value)
            return f"{column} = ?"
        if operator == "contains":
            self.values.append(value)
            return f"instr({column}, ?) > 0"
        members = list(value)
        if len(members) > _MANY:
            self.values.append(to_json(members).decode())
            return f"{column} IN (SELECT value FROM json_each(?))"
        self.values += members
        return f"{column} IN ({', '.join('?' * len(members))})"

    def sql(self) -> str:
        parts = list(self.must)
        if self.pool:
            parts.append("(" + f" {self.logic.upper()} ".join(self.pool) + ")")
        return "WHERE " + " AND ".join(parts) if parts else ""


def _order(page: Page, model: type[BaseModel], insertion: str, prefix: str = "") -> str:
    """Return a page's ORDER BY clause; equal keys keep insertion order in both directions.

    Raises:
        InvalidArgumentError: The model cannot be sorted by this field.
    """
    if page.sort_by is None:
        return f"ORDER BY {insertion}"
    sort_key(model, page.sort_by)
    column, direction = prefix + page.sort_by, page.sort_order.upper()
    if page.sort_by == "start_time" and model is Rollout:  # never null: the index serves it
        return f"ORDER BY {column} {direction}, {insertion}"
    if page.sort_by.endswith("_time"):
        return f"ORDER BY {column} IS NULL {direction}, {column} {direction}, {insertion}"
    if sortable_fields(model)[page.sort_by] == "":
        return f"ORDER BY coalesce({column}, '') {direction}, {insertion}"
    return f"ORDER BY {column} {direction}, {insertion}"


def _select(
    tables: Tables,
    columns: str,
    source: str,
    where: Where,
    order: str,
    page: Page,
    build: Callable[[Any], T],
) -> tuple[list[T], int]:
    condition = where.sql()
    rows = tables.execute(
        f"SELECT {columns} FROM {source} {condition} {order} LIMIT ? OFFSET ?",
        (*where.values, page.limit, page.offset),
    ).fetchall()
    if _is_all(rows, page):
        total = len(rows)
    else:
        (total,) = tables.one(f"SELECT count(*) FROM {source} {condition}", *where.values)
    return [build(row) for row in rows], total


def _is_all(rows: Sequence[Any], page: Page) -> bool:
    return page.offset == 0 and (page.limit == -1 or len(rows) < page.limit)


def find_rollouts(
    tables: Tables, page: Page, logic: str, **conditions: Any
) -> PaginatedResult[Rollout | AttemptedRollout]:
    """Return a page of rollouts with their latest attempts."""
    order = _order(page, Rollout, "r.ordinal", "r.")
    where = Where.of(logic, "r.", **conditions)
    # Sorted are numbers, which indexes hold, not rows; only those of the page are fetched.
    matches = f"FROM rollouts r {where.sql()}"
    rows = tables.execute(
        f"SELECT {ATTEMPTED_COLUMNS} FROM {ATTEMPTED} WHERE r.ordinal IN "
        f"(SELECT r.ordinal {matches} {order} LIMIT ? OFFSET ?) {order}",
        (*where.values, page.limit, page.offset),
    ).fetchall()
    asked = {name for name, value in conditions.items() if value is not None}
    if _is_all(rows, page):
        total = len(rows)
    elif asked <= {"status_in"}:
        total = tables.count_rollouts(conditions["status_in"])
    else:
        (total,) = tables.one(f"SELECT count(*) {matches}", *where.values)
    return page.result([attempted_from(row) for row in rows], total)


def find_attempts(tables: Tables, page: Page, rollout_id: str) -> PaginatedResult[Attempt]:
    """Return a page of a rollout's attempts."""
    order = _order(page, Attempt, "a.sequence_id")
    where = Where(must=[f"a.rollout = {ORDINAL}"], values=[rollout_id])
    return page.result(
        *_select(tables, ATTEMPT_COLUMNS, "attempts a", where, order, page, attempt_from)
    )


def find_workers(
    tables: Tables, page: Page, logic: str, **conditions: Any
) -> PaginatedResult[Worker]:
    """Return a page of workers."""
    order = _order(page, Worker, "ordinal")
    where = Where.of(logic, **conditions)
    return page.result(*_select(tables, WORKER_COLUMNS, "workers", where, order, page, worker_from))


def find_resources(
    tables: Tables, page: Page, **conditions: Any
) -> PaginatedResult[ResourcesUpdate]:
    """Return a page of snapshots."""
    order = _order(page, ResourcesUpdate, "ordinal")
    where = Where.of("and", **conditions)
    columns = "resources_id, create_time, update_time, version, resources"
    return page.result(*_select(tables, columns, "resources", where, order, page, resources_from))


def find_spans(
    tables: Tables,
    page: Page,
    rollout_id: str,
    attempt_id: str | None,
    logic: str,
    **conditions: Any,
) -> PaginatedResult[EncodedSpan]:
    """Return a page of a rollout's spans: one range of an index."""
    # The rollout is in scope by definition, so sorting by it keeps insertion order.
    by_rollout = page.sort_by == "rollout_id"
    order = "ORDER BY ordinal" if by_rollout else _order(page, Span, "ordinal")
    where = Where.of(logic, **conditions)
    scope: list[Any] = [tables.rollout_ordinal(rollout_id)]
    where.must.append("rollout = ?")
    if attempt_id == "latest":
        latest = tables.find_attempt(rollout_id, "latest")
        attempt_id = "" if latest is None else latest.attempt_id
    if attempt_id is not None:
        where.must.append("attempt_id = ?")
        scope.append(attempt_id)
    where.values[:0] = scope
    return page.result(
        *_select(
            tables,
            SPAN_COLUMNS,
            "spans",
            where,
            order,
            page,
            lambda row: span_from(rollout_id, row),
        )
    )
