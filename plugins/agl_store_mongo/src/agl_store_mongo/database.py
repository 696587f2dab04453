"""The collections, their indexes, and the writes that all parts share.

Each document has a ``partition_id``. Each query and each unique index begins with it, so that it
can be the shard key of a cluster.

=============  ===============================  ===================================================
collection     unique by (after the partition)  holds
=============  ===============================  ===================================================
``rollouts``   rollout_id                       a rollout, its attempts, its queue position
``workers``    worker_id                        a worker
``resources``  resources_id                     a snapshot
``spans``      rollout_id, attempt_id, span_id  a span as JSON
``sequences``  rollout_id                       a rollout's span counters
``counters``   name                             insertion order, the lease of the watchdog
``changes``    number                           recent changes, for other processes
=============  ===============================  ===================================================
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from bson import ObjectId
from pymongo import (
    ASCENDING,
    DESCENDING,
    AsyncMongoClient,
    IndexModel,
    ReadPreference,
    ReturnDocument,
)
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    DuplicateKeyError,
    ServerSelectionTimeoutError,
)
from pymongo.write_concern import WriteConcern

from agl_core.errors import StoreDataError
from agl_core.types import QUEUING_STATUSES
from agl_store_mongo.config import MongoConfig

__all__ = ["NEVER_LATEST", "RECENT", "Database", "pause_after"]

T = TypeVar("T")
Collection = AsyncCollection[dict[str, Any]]

NEVER_LATEST: Final = 0
"""``touched`` of a snapshot that never becomes the latest; others have a number of the counter."""

RECENT: Final = 16
"""Tokens kept of a document's last changes: a lost reply is recognised within as many more."""
_SCHEMA_VERSION: Final = 1
"""Of the documents; a store refuses a partition with a later one."""
_DUPLICATE_KEY: Final = 11000
"""MongoDB's error code."""
_TRIES: Final = 4
"""With pauses of 40, 160 and 640 ms between them, an election of a new primary may pass."""
_SILENCE_MILLISECONDS: Final = 30_000
"""How long a reply may take until the connection counts as broken."""
_CHANGES_KEPT_SECONDS: Final = 600
"""A process that was away for longer reads the records instead."""

_INDEXES: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    # The first is unique. Each begins with the partition. A name after "-" is in falling order.
    "rollouts": (
        ("rollout_id",),
        ("status", "queue_position"),
        ("timed", "status"),
        ("request",),
        ("ordinal",),
        # Equal values are in the order of insertion both ways, so a direction has its own index.
        ("start_time", "ordinal"),
        ("-start_time", "ordinal"),
        ("mode", "start_time", "ordinal"),
        ("reward", "ordinal"),
        ("-reward", "ordinal"),
        ("duration", "ordinal"),
        ("-duration", "ordinal"),
    ),
    "workers": (("worker_id",), ("ordinal",)),
    "resources": (("resources_id",), ("touched",), ("ordinal",)),
    "spans": (("rollout_id", "attempt_id", "span_id"), ("rollout_id", "sequence_id", "ordinal")),
    "sequences": (("rollout_id",),),
    "counters": (("name",),),
    "changes": (("number",),),
}


class Database:
    """The collections of one partition. Belongs to one event loop."""

    def __init__(self, config: MongoConfig) -> None:
        self.partition = {"partition_id": config.partition_id}
        milliseconds = int(config.timeout_seconds * 1000)
        defaults = {
            "serverSelectionTimeoutMS": milliseconds,
            "connectTimeoutMS": milliseconds,
            "socketTimeoutMS": _SILENCE_MILLISECONDS,
            "appname": "agl",
        }
        # The connection string overrides these defaults, and that of the write concern.
        given = config.uri.lower()
        options = {name: value for name, value in defaults.items() if name.lower() not in given}
        self.client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(config.uri, **options)
        concern = self.client.write_concern
        self._database = self.client.get_database(
            config.database_name,
            write_concern=concern if concern.document else WriteConcern("majority"),
            # A secondary may be behind, and decisions need the present state.
            read_preference=ReadPreference.PRIMARY,
        )
        self.rollouts = self._collection("rollouts")
        self.workers = self._collection("workers")
        self.resources = self._collection("resources")
        self.spans = self._collection("spans")
        self.sequences = self._collection("sequences")
        self.counters = self._collection("counters")
        self.changes = self._collection("changes")
        self._draws: dict[str, list[tuple[int, asyncio.Future[int]]]] = {}
        self._drawing: set[asyncio.Task[None]] = set()

    def _collection(self, name: str) -> Collection:
        return self._database[name]

    async def prepare(self) -> None:
        """Create what does not exist yet. Idempotent, also among processes.

        Raises:
            StoreDataError: A newer version of this package has written to the partition.
        """
        for name, indexes in _INDEXES.items():
            models = [
                IndexModel(
                    [("partition_id", ASCENDING), *map(_ordered, keys)],
                    unique=number == 0,
                )
                for number, keys in enumerate(indexes)
            ]
            if name == "changes":
                models.append(IndexModel("at", expireAfterSeconds=_CHANGES_KEPT_SECONDS))
            await self._database[name].create_indexes(models)
        await self.upsert(self.counters, self.by(name="last_scan"), {"$max": {"value": 0.0}})
        schema = await self.upsert(
            self.counters, self.by(name="schema"), {"$max": {"value": _SCHEMA_VERSION}}
        )
        if schema["value"] > _SCHEMA_VERSION:
            raise StoreDataError(
                f"partition {self.partition['partition_id']!r} has schema version "
                f"{schema['value']}, this agl-store-mongo knows up to {_SCHEMA_VERSION}: "
                "upgrade agl-store-mongo"
            )

    def by(self, **fields: Any) -> dict[str, Any]:
        """Return a filter on this partition."""
        return {**self.partition, **fields}

    def queued(self) -> dict[str, Any]:
        """Return the filter for the rollouts in the queue."""
        return self.by(status={"$in": sorted(QUEUING_STATUSES)})

    async def again(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Await an operation that may happen twice; repeat it if the connection breaks.

        MongoDB's retryable writes need a replica set; this works with a standalone server too. Two
        upserts of one document at the same time can collide on its unique key; repeated, the later
        one finds the document.

        Raises:
            ConnectionFailure: No server was found, or the connection broke each time.
        """
        for tries in range(1, _TRIES + 1):
            try:
                return await operation()
            except ServerSelectionTimeoutError:
                raise
            except (AutoReconnect, DuplicateKeyError):
                if tries == _TRIES:
                    raise
                await asyncio.sleep(0.01 * 4**tries)
        raise AssertionError("unreachable")

    async def read_clock(self) -> float:
        """Return the server's time in epoch seconds; this machine's if the server does not say."""
        hello = await self.again(lambda: self.client.admin.command("hello"))
        there: datetime | None = hello.get("localTime")
        return time.time() if there is None else there.replace(tzinfo=UTC).timestamp()

    async def take_scan_lease(self, now: float, debounce: float) -> bool:
        """Tell whether this process may scan; see :meth:`StorageBackend.begin_scan`."""
        due = self.by(
            name="last_scan",
            # A clock that was set back must not stop the scans. A value just ahead is that of
            # another process, whose write overtook this one.
            **{"$or": [{"value": {"$lte": now - debounce}}, {"value": {"$gt": now + debounce}}]},
        )
        lease = await self.again(lambda: self.counters.update_one(due, {"$set": {"value": now}}))
        return lease.matched_count == 1

    async def latest_resources(self, *fields: str) -> dict[str, Any] | None:
        """Return the document of the latest snapshot, or only these fields of it."""
        return await self.resources.find_one(
            self.by(touched={"$gt": NEVER_LATEST}), fields or None, sort=[("touched", -1)]
        )

    async def insert(self, collection: Collection, documents: list[dict[str, Any]]) -> set[int]:
        """Insert documents; return the places of those whose unique key is taken.

        A try whose connection broke may have inserted some; their ``_id`` tells them from those of
        other calls.
        """
        for document in documents:
            document |= {"_id": ObjectId(), **self.partition}
        tries = 0

        async def insert() -> set[int]:
            nonlocal tries
            tries += 1
            try:
                await collection.insert_many(documents, ordered=False)
            except BulkWriteError as error:
                failures = (error.details or {})["writeErrors"]
                if any(failure["code"] != _DUPLICATE_KEY for failure in failures):
                    raise
                return await others({failure["index"] for failure in failures})
            return set()

        async def others(places: set[int]) -> set[int]:
            if tries == 1:
                return places
            cursor = collection.find({"_id": {"$in": [documents[i]["_id"] for i in places]}})
            ours = {document["_id"] async for document in cursor}
            return {place for place in places if documents[place]["_id"] not in ours}

        return await self.again(insert)

    # -- counters --------------------------------------------------------------------------------

    async def draw(self, name: str, number: int = 1) -> int:
        """Draw ``number`` consecutive numbers of a counter; return the first.

        Calls during a draw share the next one: a busy process draws blocks instead of single
        numbers, and the numbers still follow the order of the calls.
        """
        drawn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = self._draws.get(name)
        if waiting is not None:
            waiting.append((number, drawn))
            return await drawn
        self._draws[name] = [(number, drawn)]
        task = asyncio.ensure_future(self._draw_all(name))
        self._drawing.add(task)
        task.add_done_callback(self._drawing.discard)
        return await drawn

    async def _draw_all(self, name: str) -> None:
        while batch := self._draws[name]:
            self._draws[name] = []
            total = sum(number for number, _ in batch)
            try:
                following = await self._advance(name, total) - total + 1
            except BaseException as error:  # goes to all waiting calls
                for _, drawn in [*batch, *self._draws.pop(name)]:
                    if not drawn.done():
                        drawn.set_exception(error)
                return
            for number, drawn in batch:
                if not drawn.done():
                    drawn.set_result(following)
                following += number
        del self._draws[name]

    async def _advance(self, name: str, number: int) -> int:
        document = await self.upsert(self.counters, self.by(name=name), {"$inc": {"value": number}})
        return document["value"]

    async def upsert(
        self, collection: Collection, which: dict[str, Any], update: dict[str, Any]
    ) -> dict[str, Any]:
        """Update one document, or create it; return the result."""
        document = await self.again(
            lambda: collection.find_one_and_update(
                which, update, upsert=True, return_document=ReturnDocument.AFTER
            )
        )
        if document is None:
            raise StoreDataError(f"an upsert into {collection.full_name} returned nothing")
        return document


def _ordered(key: str) -> tuple[str, int]:
    """Return a key of an index with its direction."""
    return (key[1:], DESCENDING) if key.startswith("-") else (key, ASCENDING)


async def pause_after(tries: int) -> None:
    """Sleep for a moment after a lost race, longer after several, so that one of them wins."""
    await asyncio.sleep(random.uniform(0, 0.002 * min(tries, 20)))
