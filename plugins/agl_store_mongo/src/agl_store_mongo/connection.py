"""The connection of a store: an event loop of its own, in a thread, that all calls run in.

An async MongoDB client belongs to one event loop
(https://www.mongodb.com/docs/languages/python/pymongo-driver/current/reference/migration/), and a
store does not: agents in worker threads and successive ``asyncio.run`` calls all use it. So each
store runs its calls in a background thread and hands the results over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pymongo.errors import ConfigurationError
from pymongo.uri_parser import parse_uri

from agl_core.errors import StoreDataError
from agl_core.store import BackendListener
from agl_store_mongo.claims import Claims
from agl_store_mongo.config import MongoConfig
from agl_store_mongo.database import Database
from agl_store_mongo.errors import UNTRANSLATED, translated
from agl_store_mongo.feed import Feed
from agl_store_mongo.queries import Queries
from agl_store_mongo.resources import Resources
from agl_store_mongo.rollouts import Rollouts
from agl_store_mongo.spans import Spans
from agl_store_mongo.workers import Workers

__all__ = ["Connection"]

T = TypeVar("T")


class Connection:
    """The connection of one store in one process, and the parts that use it. Not fork-safe.

    The parts (``rollouts``, ``spans``, ...) may be used only inside :meth:`call`.

    Args:
        config: The store's configuration.
        listener: Returns the listener of the backend; None before it is set.

    Raises:
        StoreDataError: The connection string is wrong.
    """

    database: Database
    feed: Feed
    workers: Workers
    rollouts: Rollouts
    claims: Claims
    resources: Resources
    spans: Spans
    queries: Queries

    def __init__(self, config: MongoConfig, listener: Callable[[], BackendListener | None]) -> None:
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
            opening = self._open(config, listener)
            asyncio.run_coroutine_threadsafe(opening, self._loop).result()
        except BaseException as error:
            self._stop()
            if isinstance(error, UNTRANSLATED):
                raise translated(error, self.host) from error
            raise

    async def _open(
        self, config: MongoConfig, listener: Callable[[], BackendListener | None]
    ) -> None:
        database = self.database = Database(config)
        if not database.client.write_concern.acknowledged:
            await database.client.close()
            raise ConfigurationError("w=0 loses writes without an error; leave it out")
        feed = self.feed = Feed(database, listener)
        self.workers = Workers(database, feed)
        self.rollouts = Rollouts(database, self.workers, feed)
        self.claims = Claims(database, self.rollouts, self.workers, feed)
        self.resources = Resources(database, feed)
        self.spans = Spans(database, self.rollouts)
        self.queries = Queries(database, self.rollouts)

    async def close(self) -> None:
        """Disconnect; calls under way fail. Idempotent; any thread."""
        if self._closed:
            return
        self._closed = True
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop))
        self._stop()

    async def _disconnect(self) -> None:
        await self.feed.close()
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

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the connection's loop; do nothing if the connection is closed."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    async def call(
        self,
        work: Callable[[Connection], Coroutine[Any, Any, T]],
        *,
        undo: Callable[[T], Coroutine[Any, Any, None]] | None = None,
    ) -> T:
        """Run a coroutine in the connection's loop and return its result.

        It runs to its end if the caller is cancelled: a write that has begun may be stored already.

        Args:
            work: Returns the coroutine.
            undo: Takes back a result whose caller was cancelled.

        Raises:
            AglError: An error of the coroutine; errors of pymongo are translated.
        """
        if self._closed:
            raise self._closed_error()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def start() -> None:
            self._start(self._perform(work)).add_done_callback(finished)

        def finished(task: asyncio.Task[T]) -> None:
            try:
                loop.call_soon_threadsafe(hand_over, task)
            except RuntimeError:  # the caller's loop is closed: the result has no receiver
                lost(task)

        def hand_over(task: asyncio.Task[T]) -> None:
            if answer.done():
                self.call_soon(lambda: lost(task))
            elif task.cancelled():
                answer.set_exception(self._closed_error())
            elif (error := task.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        def lost(task: asyncio.Task[T]) -> None:
            if not task.cancelled() and task.exception() is None:
                take_back(task.result())

        def take_back(result: T) -> None:
            if undo is not None:
                self._start(undo(result))

        self._loop.call_soon_threadsafe(start)
        try:
            return await answer
        except asyncio.CancelledError:
            # A cancellation can come after the result and before this coroutine goes on.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self.call_soon(lambda: take_back(answer.result()))
            raise

    def _closed_error(self) -> StoreDataError:
        return StoreDataError(f"the store at {self.host} is closed")

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task

    async def _perform(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
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


def _hosts(uri: str) -> str:
    """Return the servers' addresses in a connection string, for messages: no credentials."""
    if uri.startswith("mongodb+srv://"):  # the addresses behind the name take a DNS query
        return uri.removeprefix("mongodb+srv://").rpartition("@")[2].partition("/")[0]
    try:
        nodes = parse_uri(uri)["nodelist"]
    except UNTRANSLATED as error:
        raise translated(error, "an unknown address") from error
    return ", ".join(host if port is None else f"{host}:{port}" for host, port in nodes)
