"""Processes that share a partition hear of each other's changes.

Whatever a call changes is told at once to those who wait in this process, and written to
``changes`` in the background, many at a time. While somebody here waits or listens, a reader takes
in what other processes wrote: by a change stream where the server has one (replica sets and sharded
clusters), else by asking every 10 ms. Who asks also has those who wait for work look at the queue
at the same time: work is there two writes before the word of it. A process can die between a change
and telling it, so the reader also has all who wait look for themselves once a second; nobody waits
for a word alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pymongo.errors import OperationFailure, PyMongoError

from agl_core.ids import generate_id
from agl_store_mongo.database import Database

__all__ = ["Feed", "Told"]

logger = logging.getLogger(__name__)

_ASK_SECONDS: Final = 0.01
_LOOK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.5
_BATCH: Final = 500
_UNSENT: Final = 10_000
"""Changes kept for telling while the server is away; older ones are dropped, never waited for."""


class Told(NamedTuple):
    """A change, for listeners; and whether it finished or reopened a rollout."""

    kind: str
    ids: dict[str, Any]
    finished: bool | None
    time: float


class Feed:
    """Tells and hears changes. Belongs to one event loop.

    Args:
        database: The partition.
        hear: Called with each batch of changes, this process's own ones included.
        look: Called once a second while somebody waits.
        look_for_work: Called each time that a server without change streams is asked.
    """

    def __init__(
        self,
        database: Database,
        hear: Callable[[Sequence[Told]], None],
        look: Callable[[], Awaitable[None]],
        look_for_work: Callable[[], Awaitable[None]],
    ) -> None:
        self._db = database
        self._hear = hear
        self._look = look
        self._look_for_work = look_for_work
        self._name = generate_id(12)
        self._unsent: deque[Told] = deque(maxlen=_UNSENT)
        self._sending: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._users = 0
        self._in_place = asyncio.Event()
        self._place: Any = None
        """What was read: numbers, or a stream's token. Kept while the server is away."""
        self.streams: bool | None = None
        """Whether the server has change streams; None until that was asked."""

    # -- telling ---------------------------------------------------------------------------------

    def tell(self, kind: str, finished: bool | None = None, **ids: Any) -> None:
        """Tell a change, here at once and elsewhere soon."""
        told = Told(kind, ids, finished, time.time())
        self._unsent.append(told)
        self._hear([told])
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._unsent:
                batch = [self._unsent.popleft() for _ in range(min(len(self._unsent), _BATCH))]
                try:
                    await self._send(batch)
                except PyMongoError as error:
                    logger.warning("Could not tell other processes what changed: %s", error)
                    self._unsent.extendleft(reversed(batch))
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._sending = None

    async def _send(self, batch: Sequence[Told]) -> None:
        first = await self._db.draw("changes", len(batch))
        now = datetime.now(UTC)
        documents: list[dict[str, Any]] = [
            {
                "number": number,
                "by": self._name,
                "at": now,
                "time": told.time,
                "kind": told.kind,
                "ids": told.ids,
                "finished": told.finished,
            }
            for number, told in enumerate(batch, start=first)
        ]
        await self._db.insert(self._db.changes, documents)

    async def close(self) -> None:
        """Tell what is left to tell, and stop hearing."""
        if self._reading is not None:
            self._reading.cancel()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=_RETRY_SECONDS)

    # -- hearing ---------------------------------------------------------------------------------

    async def join(self) -> None:
        """Begin to hear other processes' changes; return once nothing that follows is missed.

        Call :meth:`leave` afterwards, once, also if this was cancelled.
        """
        self._users += 1
        if self._reading is None or self._reading.done():
            self._in_place.clear()
            self._reading = asyncio.ensure_future(self._read_all())
        if not self._in_place.is_set():
            in_place = asyncio.ensure_future(self._in_place.wait())
            try:
                # Without a server nobody hears anything; the caller's own call will say so.
                await asyncio.wait([in_place], timeout=_LOOK_SECONDS)
            finally:
                in_place.cancel()

    def leave(self) -> None:
        """Hear no more, unless somebody else does."""
        self._users -= 1

    async def _read_all(self) -> None:
        last_look = time.monotonic()
        self._place = None
        while self._users:
            try:
                if self.streams is None:
                    self.streams = await self._has_streams()
                async with aclosing(self._stream() if self.streams else self._ask()) as batches:
                    async for batch in batches:
                        told = [_told_from(item) for item in batch if item["by"] != self._name]
                        if told:
                            self._hear(told)
                        if time.monotonic() - last_look >= _LOOK_SECONDS:
                            last_look = time.monotonic()
                            await self._look()
                        if not self._users:
                            self._in_place.clear()
                            self._place = None
                            break
            except PyMongoError as error:
                logger.warning("Could not hear of other processes' changes: %s", error)
                if isinstance(error, OperationFailure):  # the place may be what it refuses
                    self._place = None
                await asyncio.sleep(_RETRY_SECONDS)

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
            resume_after=self._place,
            max_await_time_ms=int(_LOOK_SECONDS * 1000),
        )
        async with stream:
            self._in_place.set()
            while stream.alive:
                change = await stream.try_next()
                self._place = stream.resume_token
                yield [] if change is None else [change["fullDocument"]]

    async def _ask(self) -> AsyncGenerator[Sequence[dict[str, Any]]]:
        if self._place is None:
            counter = await self._db.counters.find_one(self._db.by(name="changes"))
            self._place = _Numbers(counter["value"] if counter else 0)
        numbers: _Numbers = self._place
        self._in_place.set()
        while True:
            cursor = self._db.changes.find(self._db.by(number={"$gt": numbers.complete}))
            batch, _ = await asyncio.gather(
                cursor.sort("number", 1).to_list(), self._look_for_work()
            )
            yield [item for item in batch if numbers.is_new(item)]
            numbers.settle()
            await asyncio.sleep(_ASK_SECONDS)


class _Numbers:
    """Which changes were read: all up to a number, and some beyond.

    A process draws numbers first and inserts under them afterwards, so a lower one can appear after
    a higher one. A gap is waited for before it is taken for that of a process that died.
    """

    def __init__(self, complete: int) -> None:
        self.complete = complete
        self._beyond: set[int] = set()
        self._gap_since: float | None = None

    def is_new(self, change: dict[str, Any]) -> bool:
        """Take note of a change; return whether it was not read before."""
        number = change["number"]
        if number in self._beyond:
            return False
        self._beyond.add(number)
        return True

    def settle(self) -> None:
        """Move on over what is complete, and over a gap that nobody fills."""
        now = time.monotonic()
        if self._beyond and self._gap_since and now - self._gap_since > _LOOK_SECONDS:
            self.complete = min(self._beyond) - 1
        while self.complete + 1 in self._beyond:
            self.complete += 1
            self._beyond.discard(self.complete)
            self._gap_since = None
        if self._beyond and self._gap_since is None:
            self._gap_since = now


def _told_from(document: dict[str, Any]) -> Told:
    return Told(document["kind"], document["ids"], document["finished"], document["time"])
