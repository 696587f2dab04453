"""The session of a store: its connections, and the event loop that all its calls run in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agl_core.errors import StoreDataError
from agl_core.waits import Waits
from agl_store_kit import BackendListener, OwnLoop
from agl_store_postgres.config import PostgresConfig
from agl_store_postgres.errors import UNTRANSLATED, translated
from agl_store_postgres.feed import Feed
from agl_store_postgres.pool import Pool

__all__ = ["Session"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
Work = Callable[["Session"], Coroutine[Any, Any, T]]
Undo = Callable[["Session", T], Coroutine[Any, Any, Any]]


class Session:
    """The connections of one store in one process. Not fork-safe.

    ``pool`` and ``feed`` may be used only inside :meth:`call`.

    Args:
        config: The store's configuration.
        listener: Returns the listener of the backend; None before it is set.

    Raises:
        StoreDataError: The connection string is wrong.
    """

    def __init__(
        self, config: PostgresConfig, listener: Callable[[], BackendListener | None]
    ) -> None:
        self.pool = Pool(config)
        self.feed = Feed(self.pool, config, listener)
        self._loop = OwnLoop("agl-postgres", self._closed_error)
        self._waits = Waits(logger.warning)

    @property
    def pid(self) -> int:
        """The process that the session was made in."""
        return self._loop.pid

    async def close(self) -> None:
        """Disconnect; calls under way fail. Idempotent; any thread."""
        await self._loop.close(self.feed.close, self.pool.close)

    async def call(self, work: Work[T], *, undo: Undo[T] | None = None) -> T:
        """Run a coroutine in the session's loop and return its result.

        It runs to its end if the caller is cancelled: a write that has begun may be stored already.

        Args:
            work: Returns the coroutine.
            undo: Takes back a result whose caller was cancelled.

        Raises:
            AglError: An error of the coroutine; errors of psycopg are translated.
        """
        if undo is None:
            return await self._loop.call(lambda: self._perform(work))
        back = undo  # narrowed, for the lambda
        return await self._loop.call(
            lambda: self._perform(work),
            undo=lambda result: self._perform(lambda session: back(session, result)),
        )

    async def _perform(self, work: Work[T]) -> T:
        try:
            with self._waits.on(lambda: f"PostgreSQL at {self.pool.address}"):
                return await work(self)
        except UNTRANSLATED as error:
            raise translated(error, self.pool.address) from error

    def _closed_error(self) -> StoreDataError:
        return StoreDataError(f"the store at {self.pool.address} is closed")
