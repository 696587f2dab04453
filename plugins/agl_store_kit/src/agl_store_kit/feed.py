"""The common part of the feeds of databases: notices to and from the other processes of a store."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from agl_core.ids import generate_id
from agl_store_kit.backend import BackendListener, Notice

logger = logging.getLogger(__name__)

_BATCH: Final = 500
"""Notices that are sent at a time, so that many do not hold the loop."""
_BACKLOG: Final = 10_000
"""Notices kept while the server is away; older ones are dropped."""


class NoticeFeed(ABC):
    """Sends the notices of this process to others, and receives theirs. Belongs to one event loop.

    A process can die between a change and its notice, so no caller may depend on a notice alone:
    :meth:`receive` lets waiting calls look again every :attr:`CHECK_SECONDS`.

    Args:
        listener: Returns the listener of the backend; None before it is set.

    Attributes:
        process: Id that tells the notices of this process from those of others.
        is_receiving: Set by :meth:`receive` once it misses no later change.
    """

    CHECK_SECONDS: ClassVar = 1.0
    RETRY_SECONDS: ClassVar = 0.5
    FAILURES: ClassVar[tuple[type[Exception], ...]]
    """Errors of :meth:`send` after which the notices are sent again."""

    def __init__(self, listener: Callable[[], BackendListener | None]) -> None:
        self.listener = listener
        self.process = generate_id(12)
        self.is_receiving = asyncio.Event()
        self._receiving: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._unsent: deque[Notice] = deque(maxlen=_BACKLOG)

    @abstractmethod
    async def send(self, notices: Sequence[Notice]) -> None:
        """Send notices to other processes."""

    @abstractmethod
    async def receive(self) -> None:
        """Pass the changes of other processes to :meth:`notify`, until cancelled or not needed."""

    def publish(self, notices: Sequence[Notice]) -> None:
        """Pass notices of a write to the listener now, and to other processes soon."""
        if not notices:
            return
        self.notify(notices)
        self._unsent.extend(notices)
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())

    def notify(self, notices: Sequence[Notice]) -> None:
        """Pass notices to the listener of this process."""
        listener = self.listener()
        if listener is not None:
            listener.changed(notices)
            listener.announce(notices)

    async def _send_all(self) -> None:
        try:
            while self._unsent:
                batch = [self._unsent.popleft() for _ in range(min(len(self._unsent), _BATCH))]
                try:
                    await self.send(batch)
                except self.FAILURES as error:
                    logger.warning("Could not tell other processes what changed: %s", error)
                    self._put_back(batch)
                    await asyncio.sleep(self.RETRY_SECONDS)
        finally:
            self._sending = None

    def _put_back(self, batch: Sequence[Notice]) -> None:
        """Keep what was not sent if there is room: a full deque would drop newer notices."""
        room = _BACKLOG - len(self._unsent)
        self._unsent.extendleft(list(reversed(batch))[:room])

    async def ready(self) -> None:
        """Return once no later change is missed, or the server does not answer."""
        if self._receiving is None or self._receiving.done():
            self.is_receiving.clear()
            self._receiving = asyncio.ensure_future(self.receive())
        if not self.is_receiving.is_set():
            waiting = asyncio.ensure_future(self.is_receiving.wait())
            try:
                # Without a server there is nothing to receive; the caller's own call will fail.
                await asyncio.wait([waiting], timeout=self.CHECK_SECONDS)
            finally:
                waiting.cancel()

    async def close(self) -> None:
        """Send what is unsent, and stop receiving."""
        if self._receiving is not None:
            self._receiving.cancel()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=self.RETRY_SECONDS)
