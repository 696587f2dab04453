"""Filters, sort orders and pages as MongoDB queries; they mean what agl_core.store.filters says.

MongoDB puts missing values before all others, and the contract puts a missing time behind them and
a missing string among the empty ones. So a sorted query has two parts, the records with a value and
those without, each in an order that an index can serve, and a page is cut across the two.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel
from pymongo import ASCENDING, DESCENDING
from pymongo.asynchronous.collection import AsyncCollection

from agl_core.store import (
    AttemptQuery,
    EncodedSpan,
    Page,
    filter_options,
    run_query,
    sort_key,
    sortable_fields,
)
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
)
from agl_store_mongo.database import Database
from agl_store_mongo.documents import (
    Document,
    record_from,
    resources_from,
    span_from,
    worker_from,
)
from agl_store_mongo.rollouts import Rollouts

__all__ = ["Queries"]

T = TypeVar("T")
Filter = dict[str, Any]


class Queries:
    """The queries of a partition."""

    def __init__(self, database: Database, rollouts: Rollouts) -> None:
        self._db = database
        self._rollouts = rollouts

    async def rollouts(
        self, page: Page, logic: str, **conditions: Any
    ) -> PaginatedResult[Rollout | AttemptedRollout]:
        """Return a page of rollouts with their latest attempts."""
        where = self._where(logic, conditions)
        return await _find(
            self._db.rollouts,
            page,
            _parts(page, Rollout, where),
            lambda document: record_from(document).attached(),
        )

    async def attempts(self, page: Page, rollout_id: str) -> PaginatedResult[Attempt]:
        """Return a page of a rollout's attempts."""
        query = AttemptQuery(
            rollout_id=rollout_id,
            sort_by=page.sort_by,
            sort_order=page.sort_order,
            limit=page.limit,
            offset=page.offset,
        )
        record = await self._rollouts.find(rollout_id, light=True)
        found, total = run_query(record.attempts if record else [], query)
        return page.result(found, total)

    async def workers(self, page: Page, logic: str, **conditions: Any) -> PaginatedResult[Worker]:
        """Return a page of workers."""
        where = self._where(logic, conditions)
        return await _find(self._db.workers, page, _parts(page, Worker, where), worker_from)

    async def resources(self, page: Page, **conditions: Any) -> PaginatedResult[ResourcesUpdate]:
        """Return a page of snapshots."""
        where = self._where("and", conditions)
        parts = _parts(page, ResourcesUpdate, where)
        return await _find(self._db.resources, page, parts, resources_from)

    async def spans(
        self, page: Page, rollout_id: str, attempt_id: str | None, logic: str, **conditions: Any
    ) -> PaginatedResult[EncodedSpan]:
        """Return a page of a rollout's spans: one range of an index."""
        scope: Filter = {"rollout_id": rollout_id}
        if attempt_id == "latest":
            record = await self._rollouts.find(rollout_id, light=True)
            latest = record and record.latest
            attempt_id = latest.attempt_id if latest else ""
        if attempt_id is not None:
            scope["attempt_id"] = attempt_id
        where = self._where(logic, conditions, scope)
        return await _find(self._db.spans, page, _parts(page, Span, where), span_from)

    async def counts(self) -> dict[str, int]:
        """Count everything, by collection; ``attempts`` as well."""
        names = ("rollouts", "spans", "resources", "workers")
        counted = await asyncio.gather(
            *(getattr(self._db, name).count_documents(self._db.by()) for name in names)
        )
        number = {"$size": {"$objectToArray": "$attempts"}}
        sums = await self._db.rollouts.aggregate(
            [{"$match": self._db.by()}, {"$group": {"_id": None, "attempts": {"$sum": number}}}]
        )
        attempts = sum([document["attempts"] async for document in sums])
        return {**dict(zip(names, counted, strict=True)), "attempts": attempts}

    def _where(self, logic: str, conditions: dict[str, Any], scope: Filter | None = None) -> Filter:
        pool: list[Filter] = []
        for field, operators in filter_options(logic=logic, **conditions).items():
            if field == "_aggregate":
                continue
            for operator, value in operators.items():
                pool.append({field: _condition(operator, value)})
        where: Filter = self._db.by(**(scope or {}))
        return {**where, f"${logic}": pool} if pool else where


def _condition(operator: str, value: Any) -> Any:
    if operator == "exact":
        return value
    if operator == "within":
        return {"$in": list(value)}
    # BSON ends a regular expression at a null character.
    return {"$regex": re.escape(value).replace("\0", r"\x00")}


def _parts(page: Page, model: type[BaseModel], where: Filter) -> list[tuple[Filter, str | None]]:
    """Return the query's parts in order: what each matches and what it is sorted by.

    Raises:
        InvalidArgumentError: The model cannot be sorted by this field.
    """
    field = page.sort_by
    if field is None:
        return [(where, None)]
    sort_key(model, field)
    missing = sortable_fields(model)[field]
    if not model.model_fields[field].is_required():
        absent = [None, missing] if missing == "" else [None]
        without = ({"$and": [where, {field: {"$in": absent}}]}, None)
        having = ({"$and": [where, {field: {"$nin": absent}}]}, field)
        last = field.endswith("_time") == (page.sort_order == "asc")
        return [having, without] if last else [without, having]
    return [(where, field)]


async def _find(
    collection: AsyncCollection[dict[str, Any]],
    page: Page,
    parts: Sequence[tuple[Filter, str | None]],
    build: Callable[[Document], T],
) -> PaginatedResult[T]:
    """Cut a page across the parts of a query."""
    direction = ASCENDING if page.sort_order == "asc" else DESCENDING
    items: list[T] = []
    total, skip = 0, page.offset
    for where, field in parts:
        left = None if page.limit == -1 else page.limit - len(items)
        matches: int | None = None
        found: list[T] = []
        if left != 0:
            order = [] if field is None else [(field, direction)]
            cursor = collection.find(where).sort([*order, ("ordinal", ASCENDING)]).skip(skip)
            if left is not None:
                cursor = cursor.limit(left)
            found = [build(document) async for document in cursor]
            if (found or not skip) and (left is None or len(found) < left):
                matches = skip + len(found)
        count: int = await collection.count_documents(where) if matches is None else matches
        items += found
        total += count
        skip = max(skip - count, 0)
    return page.result(items, total)
