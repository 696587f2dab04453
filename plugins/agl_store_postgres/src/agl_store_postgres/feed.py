"""The feed: processes that share the tables learn of each other's changes by LISTEN and NOTIFY.

Notices are sent after the commit, many at a time, in a transaction of their own. NOTIFY inside of
the writing transaction would hold a lock of the whole database until the commit is on the disk, so
writers could not commit together
(https://www.postgresql.org/message-id/3598.1363354686%40sss.pgh.pa.us). A transaction that only
notifies writes nothing to the disk.

A process can die between a change and its notice. So once a second a process with waiting claims
counts the queue, and the engine reads again what a call waits for: no caller depends on a notice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import psycopg

from agl_core.errors import StoreUnavailableError
from agl_store_kit import BackendListener, Notice, NoticeFeed
from agl_store_postgres.config import PostgresConfig
from agl_store_postgres.pool import Connection, Pool

__all__ = ["Feed"]

logger = logging.getLogger(__name__)

_LONGEST_PAYLOAD: Final = 7999
"""https://www.postgresql.org/docs/current/sql-notify.html"""


class Feed(NoticeFeed):
    """Sends and receives notices. Belongs to one event loop.

    Args:
        pool: Sends.
        config: The store's configuration.
        listener: Returns the listener of the backend; None before it is set.
    """

    FAILURES = (psycopg.Error, StoreUnavailableError)

    def __init__(
        self,
        pool: Pool,
        config: PostgresConfig,
        listener: Callable[[], BackendListener | None],
    ) -> None:
        super().__init__(listener)
        self._pool = pool
        self._uri = config.listen_uri or config.uri
        self._seconds = config.timeout_seconds
        self._channel = f"agl_{config.schema_name}"
        self._hears_itself = False

    # -- sending ---------------------------------------------------------------------------------

    async def send(self, notices: Sequence[Notice]) -> None:
        await self._pool.rows(
            "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload",
            *(self._channel, list(self._payloads(notices))),
        )

    def _payloads(self, notices: Sequence[Notice]) -> Iterator[str]:
        """Yield the notices as JSON in pieces that fit into a notification."""
        head = json.dumps([self.process])[:-1]
        parts: list[str] = []
        size = len(head) + 1
        for notice in notices:
            part = json.dumps(notice)
            if len(part) + len(head) + 2 > _LONGEST_PAYLOAD:
                continue  # an id of thousands of characters; the checks find the change
            if size + len(part) + 1 > _LONGEST_PAYLOAD:
                yield ",".join([head, *parts]) + "]"
                parts, size = [], len(head) + 1
            parts.append(part)
            size += len(part) + 1
        yield ",".join([head, *parts]) + "]"

    # -- receiving -------------------------------------------------------------------------------

    async def receive(self) -> None:
        first = True
        while True:
            try:
                connection = await self._pool.connect(self._uri, self._seconds)
                try:
                    await connection.execute(f'LISTEN "{self._channel}"'.encode())
                    self.is_receiving.set()
                    if not first:
                        await self._check(lost=True)
                    first = False
                    await self._receive(connection)
                finally:
                    self.is_receiving.clear()
                    await connection.close()
            except (psycopg.Error, StoreUnavailableError) as error:
                logger.warning("Could not hear other processes' changes: %s", error)
                await asyncio.sleep(self.RETRY_SECONDS)

    async def _receive(self, connection: Connection) -> None:
        self._hears_itself = False
        await self.send([])
        checks = 0
        while True:
            async for notification in connection.notifies(timeout=self.CHECK_SECONDS):
                self._take(notification.payload)
            await self._check(lost=False)
            checks += 1
            if checks == 2 and not self._hears_itself:
                logger.error(
                    "Notifications of PostgreSQL at %s do not arrive, so waiting calls wake late. "
                    "Does the uri lead to a pooler? Then set listen_uri to a direct connection.",
                    self._pool.address,
                )

    def _take(self, payload: str) -> None:
        process, *notices = json.loads(payload)
        if process == self.process:
            self._hears_itself = True
        elif notices:
            self.notify([Notice(*fields) for fields in notices])

    async def _check(self, *, lost: bool) -> None:
        """Wake claims whose notices may be lost, and after a lost connection other calls, too."""
        listener = self.listener()
        if listener is None:
            return
        if lost:
            listener.look_again()
        if claims := listener.waiting_claims:
            rows = await self._pool.rows(
                "SELECT 1 FROM @rollouts WHERE queue_position IS NOT NULL LIMIT %s", claims
            )
            listener.work_available(len(rows))
