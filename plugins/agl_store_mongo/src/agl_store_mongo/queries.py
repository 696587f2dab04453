"""Filters, sort orders and pages as MongoDB queries, with the meaning of the store contract.

MongoDB sorts missing values before all others. The contract sorts a missing time after the others,
and a missing string as the empty string. So a sorted query has two parts, the records with a value
and those without, each in an order that an index can serve, and a page is cut across the two.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any, TypeVar, get_args

from pydantic import BaseModel
from pymongo import ASCENDING, DESCENDING
from pymongo.asynchronous.collection import AsyncCollection

from agl_core.store import EncodedSpan, LightningStoreStatistics
from agl_core.types import (
    RUNNING_STATUSES,
    Attempt,
    ResourcesUpdate,
    RolloutStatus,
    Worker,
)
from agl_store_kit import (
    AttemptQuery,
    Query,
    ResourcesQuery,
    RolloutQuery,
    RolloutRecord,
    SpanQuery,
    WorkerQuery,
    run_query,
    sortable_fields,
)
from agl_store_mongo.database import Database
from agl_store_mongo.documents import (
    WITHOUT_INPUT,
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

    async def rollouts(self, query: RolloutQuery) -> tuple[list[RolloutRecord], int]:
        """Return a page of rollouts with their latest attempts."""
        return await _find(self._db.rollouts, query, self._where(query), _rollout_record)

    async def attempts(self, query: AttemptQuery) -> tuple[Sequence[Attempt], int]:
        """Return a page of a rollout's attempts."""
        record = await self._rollouts.find(query.rollout_id, payload=False)
        return run_query(record.attempts if record else [], query)

    async def workers(self, query: WorkerQuery) -> tuple[list[Worker], int]:
        """Return a page of workers."""
        return await _find(self._db.workers, query, self._where(query), worker_from)

    async def resources(self, query: ResourcesQuery) -> tuple[list[ResourcesUpdate], int]:
        """Return a page of snapshots."""
        return await _find(self._db.resources, query, self._where(query), resources_from)

    async def spans(self, query: SpanQuery) -> tuple[list[EncodedSpan], int]:
        """Return a page of a rollout's spans: one range of an index."""
        scope: Filter = {"rollout_id": query.rollout_id}
        if query.attempt_id is not None:
            scope["attempt_id"] = query.attempt_id
        where = self._where(query, scope)
        return await _find(self._db.spans, query, where, span_from, {"payload": 1, "_id": 0})

    async def statuses(self, rollout_ids: Sequence[str]) -> dict[str, RolloutStatus]:
        """Return the status of each of the rollouts that exists."""
        which = self._db.by(rollout_id={"$in": list(rollout_ids)})
        cursor = self._db.rollouts.find(which, {"rollout_id": 1, "status": 1, "_id": 0})
        return {document["rollout_id"]: document["status"] async for document in cursor}

    async def watched(self) -> list[RolloutRecord]:
        """Return the rollouts that the watchdog looks at, without their inputs."""
        which = self._db.by(timed=True, status={"$in": sorted(RUNNING_STATUSES)})
        cursor = self._db.rollouts.find(which, WITHOUT_INPUT)
        return [_rollout_record(document) async for document in cursor]

    async def statistics(self) -> LightningStoreStatistics:
        """Count everything."""
        collections = (self._db.rollouts, self._db.spans, self._db.resources, self._db.workers)
        rollouts, spans, resources, workers = await asyncio.gather(
            *(_count(collection, self._db.by()) for collection in collections)
        )
        number = {"$size": {"$objectToArray": "$attempts"}}
        sums = await self._db.rollouts.aggregate(
            [{"$match": self._db.by()}, {"$group": {"_id": None, "attempts": {"$sum": number}}}]
        )
        return {
            "total_rollouts": rollouts,
            "total_attempts": sum([document["attempts"] async for document in sums]),
            "total_spans": spans,
            "total_resources": resources,
            "total_workers": workers,
        }

    def _where(self, query: Query, scope: Filter | None = None) -> Filter:
        pool: list[Filter] = []
        for field, operators in query.filter_options().items():
            if field == "_aggregate":
                continue
            for operator, value in operators.items():
                pool.append({field: _condition(operator, value)})
        where: Filter = self._db.by(**(scope or {}))
        if query.filter_logic == "and":
            return reduce(_both, pool, where)
        return {**where, "$or": pool} if pool else where


def _rollout_record(document: Document) -> RolloutRecord:
    record = record_from(document)
    return record.rollout, record.latest


def _condition(operator: str, value: Any) -> Any:
    if operator == "exact":
        return value
    if operator == "within":
        return {"$in": list(value)}
    # A null character ends a regular expression in BSON (https://bsonspec.org/spec.html).
    return {"$regex": re.escape(value).replace("\0", r"\x00")}


async def _count(collection: AsyncCollection[dict[str, Any]], which: Filter) -> int:
    """Count documents with one ``$count``; pymongo's count groups them by a constant."""
    counts = await collection.aggregate([{"$match": which}, {"$count": "n"}])
    return sum([document["n"] async for document in counts])


def _both(one: Filter, other: Filter) -> Filter:
    """Return the filter that both make, flat if it can be: servers plan such filters best."""
    return {"$and": [one, other]} if one.keys() & other.keys() else {**one, **other}


def _parts(query: Query, where: Filter) -> list[tuple[Filter, str | None]]:
    """Return the query's parts in order: what each matches and what it is sorted by."""
    field = query.sort_by
    if field is None:
        return [(where, None)]
    missing = sortable_fields(query.model)[field]
    if _may_be_missing(query.model, field):
        absent = [None, missing] if missing == "" else [None]
        without = (_both(where, {field: {"$in": absent}}), None)
        having = (_both(where, {field: {"$nin": absent}}), field)
        last = field.endswith("_time") == (query.sort_order == "asc")
        return [having, without] if last else [without, having]
    return [(where, field)]


@cache
def _may_be_missing(model: type[BaseModel], field: str) -> bool:
    """Return whether a record may have no value here; a field may be required and still be None."""
    known = model.model_fields.get(field)  # a figure of a rollout is in no record
    return known is None or type(None) in get_args(known.annotation)


async def _find(
    collection: AsyncCollection[dict[str, Any]],
    query: Query,
    where: Filter,
    build: Callable[[Document], T],
    projection: dict[str, int] | None = None,
) -> tuple[list[T], int]:
    """Cut a page across the parts of a query; return it and the number of all matches."""
    direction = ASCENDING if query.sort_order == "asc" else DESCENDING
    items: list[T] = []
    total, skip = 0, query.offset
    for part, field in _parts(query, where):
        left = None if query.limit == -1 else query.limit - len(items)
        matches: int | None = None
        found: list[T] = []
        if left != 0:
            order = [] if field is None else [(field, direction)]
            cursor = collection.find(part, projection).skip(skip)
            cursor = cursor.sort([*order, ("ordinal", ASCENDING)])
            if left is not None:
                cursor = cursor.limit(left)
            found = [build(document) async for document in cursor]
            if (found or not skip) and (left is None or len(found) < left):
                matches = skip + len(found)  # the page reaches the end, so a count is not needed
        count = await _count(collection, part) if matches is None else matches
        items += found
        total += count
        skip = max(skip - count, 0)
    return items, total
