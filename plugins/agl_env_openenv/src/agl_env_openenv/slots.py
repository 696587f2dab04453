"""Waiting for a session when the server has none to spare."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from agl_env_openenv.session import NoSessionLeftError, Session, Step


class SessionSlots:
    """Counts the sessions of this process with a server, which allows only so many.

    A refused session waits until another session of this process ends. Without another session it
    fails, since a server does not tell when the sessions of other processes end. Safe for use from
    several threads and event loops. An unpickled object counts from zero.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0
        self._change: Future[None] = Future()

    def __reduce__(self) -> tuple[type[SessionSlots], tuple[()]]:
        return SessionSlots, ()

    @asynccontextmanager
    async def session(
        self, make: Callable[[], Session], arguments: Mapping[str, Any]
    ) -> AsyncIterator[tuple[Session, Step]]:
        """Open a session, reset it, and end it on exit.

        Args:
            make: Returns a session that is not connected.
            arguments: Those of the reset.

        Raises:
            SessionError: The server fails, or other processes have all of its sessions.
        """
        while True:
            with self._lock:
                self._taken += 1
                change = self._change
            try:
                async with make() as session:
                    first = await session.reset(arguments)
                    yield session, first
            except NoSessionLeftError:
                if not self._others(change):
                    self._leave()
                    raise
            except BaseException:
                self._leave()
                raise
            else:
                self._leave()
                return
            # A cancelled waiter must not cancel the future that others wait for.
            await asyncio.shield(asyncio.wrap_future(change))

    def _others(self, change: Future[None]) -> bool:
        """Give the slot back and return True if others hold slots, or have just left one."""
        with self._lock:
            if self._taken == 1 and not change.done():
                return False
            self._taken -= 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._taken -= 1
            change, self._change = self._change, Future()
        change.set_result(None)
