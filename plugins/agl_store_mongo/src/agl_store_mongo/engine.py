"""One event loop of its own for the connection, so that callers may come from any loop or thread.

An async MongoDB client belongs to one event loop, and a store does not: agents in worker threads
and successive ``asyncio.run`` calls all use it. So each store runs its calls in a background thread
and hands the results over.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pymongo.errors import ConfigurationError
from pymongo.uri_parser import parse_uri

from agl_core.errors import StoreDataError
from agl_core.types import AttemptedRollout
from agl_store_mongo.claiming import Claiming
from agl_store_mongo.config import MongoConfig
from agl_store_mongo.creating import Creating
from agl_store_mongo.database import Database
from agl_store_mongo.errors import UNTRANSLATED, translated
from agl_store_mongo.queries import Queries
from agl_store_mongo.resources import Resources
from agl_store_mongo.rollouts import Rollouts
from agl_store_mongo.spans import Spans
from agl_store_mongo.waiting import Waiting
from agl_store_mongo.watchdog import Watchdog
from agl_store_mongo.workers import Workers

__all__ = ["Engine"]

T = TypeVar("T")


class Engine:
    """The connection of one store in one process, and all that works on it. Not fork-safe.

    The parts (``rollouts``, ``spans``, …) are only to be used inside :meth:`call`.

    Args:
        config: The store's configuration.

    Raises:
        StoreDataError: The connection string is wrong.
    """

    database: Database
    waiting: Waiting
    workers: Workers
    rollouts: Rollouts
    creating: Creating
    claiming: Claiming
    watchdog: Watchdog
    resources: Resources
    spans: Spans
    queries: Queries

    def __init__(self, config: MongoConfig) -> None:
        self.config = config
        self.pid = os.getpid()
        self.host = _hosts(config.uri)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._prepared = False
        self._preparing = asyncio.Lock()
        self._closed = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="agl-mongo", daemon=True
        )
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()
        except BaseException as error:
            self._stop()
            if isinstance(error, UNTRANSLATED):
                raise translated(error, self.host) from error
            raise

    async def _connect(self) -> None:
        self.database = Database(self.config)
        if not self.database.client.write_concern.acknowledged:
            await self.database.client.close()
            raise ConfigurationError("w=0 would lose writes without a word; leave it out")
        self.waiting = Waiting(self.database)
        feed = self.waiting.feed
        self.workers = Workers(self.database, feed)
        self.rollouts = Rollouts(self.database, self.workers, feed)
        self.creating = Creating(self.database, self.rollouts, self.workers)
        self.claiming = Claiming(self.database, self.rollouts, self.workers, feed)
        self.watchdog = Watchdog(self.database, self.rollouts)
        self.resources = Resources(self.database, feed)
        self.spans = Spans(self.database, self.rollouts)
        self.queries = Queries(self.database, self.rollouts)

    async def close(self) -> None:
        """Disconnect; calls under way fail. Idempotent; any thread."""
        if self._closed:
            return
        self._closed = True
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop))
        self._stop()

    async def _disconnect(self) -> None:
        await self.waiting.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.database.client.close()
        await self._loop.shutdown_default_executor()  # it looked up the servers' names

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- calls -----------------------------------------------------------------------------------

    async def call(
        self,
        work: Callable[[Engine], Coroutine[Any, Any, T]],
        *,
        stop: bool = False,
        undo: Callable[[T], Coroutine[Any, Any, None]] | None = None,
    ) -> T:
        """Do something in the store's loop; return its result.

        Args:
            work: What to do.
            stop: Whether the cancellation of the caller cancels it. A write is left to finish.
            undo: Takes a result back that its caller was not there to receive.

        Raises:
            AglError: What the work raised, or what an error of MongoDB's means.
        """
        if self._closed:
            raise StoreDataError(f"the store at {self.host} is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self._start(self._perform(work))
            tasks.append(task)
            task.add_done_callback(finished)

        def finished(task: asyncio.Task[T]) -> None:
            try:
                loop.call_soon_threadsafe(hand_over, task)
            except RuntimeError:  # the caller's loop is closed: nobody takes the result
                lost(task)

        def hand_over(task: asyncio.Task[T]) -> None:
            if answer.done():
                self._loop.call_soon_threadsafe(lost, task)
            elif task.cancelled():
                answer.set_exception(StoreDataError(f"the store at {self.host} is closed"))
            elif (error := task.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        def lost(task: asyncio.Task[T]) -> None:
            if not task.cancelled() and task.exception() is None and undo is not None:
                self._start(undo(task.result()))

        self._loop.call_soon_threadsafe(start)
        try:
            return await answer
        except asyncio.CancelledError:
            if stop and not self._closed:
                self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            raise

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _perform(self, work: Callable[[Engine], Awaitable[T]]) -> T:
        try:
            if not self._prepared:
                await self._prepare()
            return await work(self)
        except UNTRANSLATED as error:
            raise translated(error, self.host) from error

    async def _prepare(self) -> None:
        async with self._preparing:
            if not self._prepared:
                await self.database.prepare()
                self._prepared = True

    async def claim(
        self, limit: int, worker_id: str | None, key: str | None, *, note_idle: bool
    ) -> list[AttemptedRollout]:
        """Claim work, inside :meth:`call`; a cancellation in the middle gives it back."""
        task = self._start(self.claiming.claim(limit, worker_id, key, note_idle=note_idle))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._take_back)
            raise

    def _take_back(self, task: asyncio.Task[list[AttemptedRollout]]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._start(self.claiming.give_back(task.result()))


def _hosts(uri: str) -> str:
    """Return the servers' addresses in a connection string, for messages: no credentials."""
    if uri.startswith("mongodb+srv://"):  # the names behind it take a look-up
        return uri.removeprefix("mongodb+srv://").rpartition("@")[2].partition("/")[0]
    try:
        nodes = parse_uri(uri)["nodelist"]
    except UNTRANSLATED as error:
        raise translated(error, "an unknown address") from error
    return ", ".join(host if port is None else f"{host}:{port}" for host, port in nodes)
