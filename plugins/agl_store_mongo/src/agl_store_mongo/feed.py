"""The feed: processes that share a partition learn of each other's changes.

Each change goes to the listener of this process at once, and into the collection ``changes`` in the
background, many at a time. While a call of this process waits or listens, a reader passes on what
other processes wrote: from a change stream where the server has one (replica sets and sharded
clusters, https://www.mongodb.com/docs/manual/changeStreams/), else by a query every 10 ms. The
queue is counted at the same time, because work is in the queue two writes before its notice is in
``changes``.

A process can die between a change and its notice. So once a second the reader counts the queue and
lets waiting calls read again: no caller depends on a notice alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

from pymongo.errors import OperationFailure, PyMongoError

from agl_core.types import FINISHED_STATUSES
from agl_store_kit import BackendListener, Notice, NoticeFeed
from agl_store_mongo.database import Database
from agl_store_mongo.documents import Document

__all__ = ["Feed"]

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.01
"""Between two reads where a server has no change streams: a runner hears of a task that late."""


class Feed(NoticeFeed):
    """Sends and receives notices. Belongs to one event loop.

    Args:
        database: The partition.
        listener: Returns the listener of the backend; None before it is set.
    """

    FAILURES = (PyMongoError,)

    def __init__(self, database: Database, listener: Callable[[], BackendListener | None]) -> None:
        super().__init__(listener)
        self._db = database
        self._users = 0
        self._position: Any = None
        """Change numbers that were read, or a stream's token. Kept while the server is away."""
        self.streams: bool | None = None
        """Whether the server has change streams; None until the server was asked."""

    async def send(self, notices: Sequence[Notice]) -> None:
        first = await self._db.draw("changes", len(notices))
        now = datetime.now(UTC)
        documents = [
            {"number": number, "by": self.process, "at": now, **_notice_fields(notice)}
            for number, notice in enumerate(notices, start=first)
        ]
        await self._db.insert(self._db.changes, documents)

    # -- receiving -------------------------------------------------------------------------------

    def join(self) -> None:
        """Note that one more caller needs the changes of other processes."""
        self._users += 1

    def leave(self) -> None:
        """Note that one caller less needs them; the reader ends with the last."""
        self._users -= 1

    async def receive(self) -> None:
        last_check = time.monotonic()
        self._position = None
        while self._users:
            try:
                if self.streams is None:
                    self.streams = await self._has_streams()
                async with aclosing(self._stream() if self.streams else self._poll()) as batches:
                    async for batch in batches:
                        others = [item for item in batch if item["by"] != self.process]
                        if others:
                            self.notify([_notice_from(item) for item in others])
                        if time.monotonic() - last_check >= self.CHECK_SECONDS:
                            last_check = time.monotonic()
                            await self._check()
                        if not self._users:
                            self.is_receiving.clear()
                            self._position = None
                            break
            except PyMongoError as error:
                logger.warning("Could not read other processes' changes: %s", error)
                if isinstance(error, OperationFailure):  # perhaps because of the position
                    self._position = None
                await asyncio.sleep(self.RETRY_SECONDS)

    async def _check(self) -> None:
        """Wake the callers whose notices may be lost."""
        await self._count_queue()
        listener = self.listener()
        if listener is not None:
            listener.look_again()

    async def _count_queue(self) -> None:
        """Wake as many waiting claims as there are rollouts in the queue."""
        listener = self.listener()
        if listener is not None and (claims := listener.waiting_claims):
            cursor = self._db.rollouts.find(self._db.queued(), {"_id": 1}).limit(claims)
            listener.work_available(len(await cursor.to_list()))

    async def _has_streams(self) -> bool:
        hello = await self._db.client.admin.command("hello")
        return "setName" in hello or hello.get("msg") == "isdbgrid"

    async def _stream(self) -> AsyncGenerator[Sequence[dict[str, Any]]]:
        matching = {
            "operationType": "insert",
            "fullDocument.partition_id": self._db.partition["partition_id"],
        }
        stream = await self._db.changes.watch(
            [{"$match": matching}],
            resume_after=self._position,
            max_await_time_ms=int(self.CHECK_SECONDS * 1000),
        )
        async with stream:
            self.is_receiving.set()
            while stream.alive:
                change = await stream.try_next()
                self._position = stream.resume_token
                yield [] if change is None else [change["fullDocument"]]

    async def _poll(self) -> AsyncGenerator[Sequence[dict[str, Any]]]:
        if self._position is None:
            counter = await self._db.counters.find_one(self._db.by(name="changes"))
            self._position = _Numbers(counter["value"] if counter else 0)
        numbers: _Numbers = self._position
        self.is_receiving.set()
        while True:
            cursor = self._db.changes.find(self._db.by(number={"$gt": numbers.complete}))
            batch, _ = await asyncio.gather(cursor.sort("number", 1).to_list(), self._count_queue())
            yield [item for item in batch if numbers.is_new(item)]
            numbers.settle()
            await asyncio.sleep(_POLL_SECONDS)


class _Numbers:
    """The changes that were read: all up to a number, and some beyond it.

    A process draws numbers first and inserts under them afterwards, so a lower number can appear
    after a higher one. A gap that stays open longer than that takes is of a process that died.
    """

    def __init__(self, complete: int) -> None:
        self.complete = complete
        self._beyond: set[int] = set()
        self._gap_since: float | None = None

    def is_new(self, change: Document) -> bool:
        """Note that a change was read; return whether it is the first time."""
        number = change["number"]
        if number in self._beyond:
            return False
        self._beyond.add(number)
        return True

    def settle(self) -> None:
        """Advance over what is complete, and over a gap that stays open."""
        now = time.monotonic()
        if self._beyond and self._gap_since and now - self._gap_since > NoticeFeed.CHECK_SECONDS:
            self.complete = min(self._beyond) - 1
        while self.complete + 1 in self._beyond:
            self.complete += 1
            self._beyond.discard(self.complete)
            self._gap_since = None
        if self._beyond and self._gap_since is None:
            self._gap_since = now


def _notice_fields(notice: Notice) -> dict[str, Any]:
    fields = notice._asdict()
    kind, moment = fields.pop("kind"), fields.pop("time")
    # Version 0.1.0 reads ``finished``; here the status says as much.
    finished = notice.status in FINISHED_STATUSES if kind == "rollout" else None
    return {"kind": kind, "time": moment, "ids": fields, "finished": finished}


def _notice_from(document: Document) -> Notice:
    return Notice(document["kind"], document["time"], **document["ids"])
