"""The collections, their indexes, and the few writes that all parts share.

Every document carries ``partition_id``, and every query and every unique index begins with it: that
is what a sharded cluster distributes by.

=============  ===============================  ===================================================
collection     unique by (after the partition)  holds
=============  ===============================  ===================================================
``rollouts``   rollout_id                       a rollout, its attempts, its place in the queue
``workers``    worker_id                        a worker
``resources``  resources_id                     a snapshot
``spans``      rollout_id, attempt_id, span_id  a span as the JSON it arrived as
``sequences``  rollout_id                       a rollout's span counters
``counters``   name                             insertion order, the watchdog's lease
``changes``    number                           what changed, for other processes; short-lived
=============  ===============================  ===================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from bson import ObjectId
from pymongo import ASCENDING, AsyncMongoClient, IndexModel, ReadPreference, ReturnDocument
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

__all__ = ["NEVER_LATEST", "Database"]

T = TypeVar("T")
Collection = AsyncCollection[dict[str, Any]]

NEVER_LATEST: Final = 0
"""``touched`` of a snapshot that is none to run with; others have a number of the counter."""

_SCHEMA_VERSION: Final = 1
_DUPLICATE_KEY: Final = 11000
_TRIES: Final = 4
_SILENCE_MILLISECONDS: Final = 30_000
"""How long the server may take to answer before the connection counts as broken."""
_CHANGES_KEPT_SECONDS: Final = 600

_INDEXES: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    # The first is the unique one; the partition is put before each.
    "rollouts": (
        ("rollout_id",),
        ("status", "queue_position"),
        ("timed", "status"),
        ("request",),
        ("ordinal",),
        ("start_time", "ordinal"),
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
        # What the connection string says wins over the defaults, here and for writes.
        given = config.uri.lower()
        options = {name: value for name, value in defaults.items() if name.lower() not in given}
        self.client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(config.uri, **options)
        concern = self.client.write_concern
        self._database = self.client.get_database(
            config.database_name,
            write_concern=concern if concern.document else WriteConcern("majority"),
            # A change is decided upon what was read, so that must not be old.
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
                    [("partition_id", ASCENDING), *((key, ASCENDING) for key in keys)],
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
                "pip install -U agl-store-mongo"
            )

    def by(self, **fields: Any) -> dict[str, Any]:
        """Return a filter on this partition."""
        return {**self.partition, **fields}

    def queued(self) -> dict[str, Any]:
        """Return the filter of what stands in the queue."""
        return self.by(status={"$in": sorted(QUEUING_STATUSES)})

    async def again(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Do something that may be done twice; do it again if the connection breaks.

        MongoDB's own retries need a replica set; this works with a single server too. Two upserts
        of one document at once can collide on its unique key: the later one then finds it.

        Raises:
            ConnectionFailure: There is no server to be found, or the connection breaks each time.
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

    async def latest_resources(self, *fields: str) -> dict[str, Any] | None:
        """Return these fields (or all) of the snapshot most recently put."""
        return await self.resources.find_one(
            self.by(touched={"$gt": NEVER_LATEST}), fields or None, sort=[("touched", -1)]
        )

    async def insert(self, collection: Collection, documents: list[dict[str, Any]]) -> set[int]:
        """Insert documents; return the places of those whose unique key is taken already.

        A try that broke off may have inserted some. They are told from others' by their ``_id``.
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

        Calls that come while a draw is under way share the next: a busy process asks for a block
        instead of one number at a time, and numbers still follow the order of the calls.
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
            except BaseException as error:  # handed to those who wait, all of them
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
        """Update one document, creating it if need be; return it as it is afterwards."""
        document = await self.again(
            lambda: collection.find_one_and_update(
                which, update, upsert=True, return_document=ReturnDocument.AFTER
            )
        )
        if document is None:
            raise StoreDataError(f"an upsert into {collection.full_name} returned nothing")
        return document
