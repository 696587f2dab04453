"""The connection of a store, and the event loop that all its calls run in.

An async MongoDB client belongs to one event loop
(https://www.mongodb.com/docs/languages/python/pymongo-driver/current/reference/migration/).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pymongo.errors import ConfigurationError
from pymongo.uri_parser import parse_uri

from agl_core.errors import StoreDataError
from agl_core.waits import Waits
from agl_store_kit import BackendListener, OwnLoop
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

logger = logging.getLogger(__name__)
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
        self.host = _hosts(config.uri)
        self._prepared = False
        self._preparing = asyncio.Lock()
        self._waits = Waits(logger.warning)
        self._loop = OwnLoop("agl-mongo", self._closed_error)
        try:
            self._loop.run(lambda: self._open(config, listener))
        except BaseException as error:
            self._loop.stop()
            if isinstance(error, UNTRANSLATED):
                raise translated(error, self.host) from error
            raise

    @property
    def pid(self) -> int:
        """The process that the connection was made in."""
        return self._loop.pid

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
        await self._loop.close(self.feed.close, self.database.client.close)

    # -- calls -----------------------------------------------------------------------------------

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the connection's loop; do nothing if the connection is closed."""
        self._loop.call_soon(function)

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
        return await self._loop.call(lambda: self._perform(work), undo=undo)

    def _closed_error(self) -> StoreDataError:
        return StoreDataError(f"the store at {self.host} is closed")

    async def _perform(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        try:
            with self._waits.on(lambda: f"MongoDB at {self.host}"):
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
