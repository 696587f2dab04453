"""The MongoDB backend: each call runs in the event loop of the connection."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from agl_core.store import (
    EncodedSpan,
    LightningStoreCapabilities,
    LightningStoreStatistics,
)
from agl_core.types import Attempt, ResourcesUpdate, Rollout, RolloutStatus, Worker
from agl_store_kit import (
    AttemptQuery,
    ClaimRequest,
    Decide,
    DecideResources,
    DecideWorker,
    ResourcesQuery,
    RolloutQuery,
    RolloutRecord,
    SharedClock,
    SpanQuery,
    StorageBackend,
    WorkerQuery,
)
from agl_store_mongo.config import MongoConfig
from agl_store_mongo.connection import Connection

__all__ = ["MongoBackend"]

T = TypeVar("T")


class MongoBackend(StorageBackend):
    """Keeps everything in one partition of a database. Thread-safe; connects again after a fork.

    Args:
        config: The store's configuration.

    Raises:
        StoreDataError: The connection string is wrong.
    """

    shares_records = False

    def __init__(self, config: MongoConfig) -> None:
        self._config = config
        self._current = Connection(config, lambda: self._listener)
        self.clock = SharedClock(self._read_clock)

    async def _read_clock(self) -> float:
        return await self._call(lambda connection: connection.database.read_clock())

    @property
    def connection(self) -> Connection:
        """The connection of this process."""
        # After a fork the child has neither the parent's thread nor the right to its sockets.
        if self._current.pid != os.getpid():
            self._current = Connection(self._config, lambda: self._listener)
        return self._current

    async def _call(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        return await self.connection.call(work)

    # -- about the store -------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The servers' addresses, without credentials."""
        return self._current.host

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "durable": True}

    async def statistics(self) -> LightningStoreStatistics:
        return await self._call(lambda connection: connection.queries.statistics())

    @asynccontextmanager
    async def remote_changes(self) -> AsyncGenerator[None]:
        connection = self.connection
        connection.call_soon(connection.feed.join)
        try:
            await connection.call(lambda connection: connection.feed.ready())
            yield
        finally:
            # Without an await: a claim that was made inside this context must reach its caller.
            connection.call_soon(connection.feed.leave)

    async def close(self) -> None:
        if self._current.pid == os.getpid():
            await self._current.close()

    # -- changing --------------------------------------------------------------------------------

    async def insert_rollouts(
        self,
        rollouts: Sequence[Rollout],
        *,
        begin: Decide | None = None,
        worker_id: str | None = None,
    ) -> Sequence[RolloutRecord] | None:
        return await self._call(
            lambda connection: connection.rollouts.insert(rollouts, begin, worker_id)
        )

    async def claim(self, request: ClaimRequest) -> Sequence[tuple[Rollout, Attempt]]:
        connection = self.connection
        return await connection.call(
            lambda connection: connection.claims.claim(request), undo=connection.claims.give_back
        )

    async def change(
        self,
        rollout_id: str,
        decide: Decide,
        *,
        attempt_id: str = "latest",
        worker_id: str | None = None,
        payload: bool = True,
        key: str | None = None,
    ) -> RolloutRecord:
        return await self._call(
            lambda connection: connection.rollouts.change(
                rollout_id,
                decide,
                attempt_id=attempt_id,
                worker_id=worker_id,
                payload=payload,
                key=key,
            )
        )

    async def append_spans(
        self, spans: Sequence[EncodedSpan], arrived: Decide
    ) -> Sequence[EncodedSpan]:
        return await self._call(lambda connection: connection.spans.append(spans, arrived))

    async def draw_sequence_ids(self, rollout_ids: Sequence[str]) -> Sequence[int]:
        return await self._call(lambda connection: connection.spans.draw(rollout_ids))

    async def put_resources(
        self,
        resources_id: str,
        decide: DecideResources,
        *,
        becomes_latest: bool,
        key: str | None = None,
    ) -> ResourcesUpdate:
        return await self._call(
            lambda connection: connection.resources.put(resources_id, decide, becomes_latest, key)
        )

    async def change_worker(self, worker_id: str, decide: DecideWorker) -> Worker:
        return await self._call(lambda connection: connection.workers.change(worker_id, decide))

    # -- reading ---------------------------------------------------------------------------------

    async def get_rollout(self, rollout_id: str) -> RolloutRecord | None:
        record = await self._call(lambda connection: connection.rollouts.find(rollout_id))
        return None if record is None else (record.rollout, record.latest)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        record = await self._call(
            lambda connection: connection.rollouts.find(rollout_id, payload=False)
        )
        return None if record is None else record.latest

    async def get_resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        return await self._call(lambda connection: connection.resources.find(resources_id))

    async def get_worker(self, worker_id: str) -> Worker | None:
        return await self._call(lambda connection: connection.workers.find(worker_id))

    async def find_rollouts(self, query: RolloutQuery) -> tuple[Sequence[RolloutRecord], int]:
        return await self._call(lambda connection: connection.queries.rollouts(query))

    async def find_attempts(self, query: AttemptQuery) -> tuple[Sequence[Attempt], int]:
        return await self._call(lambda connection: connection.queries.attempts(query))

    async def find_spans(self, query: SpanQuery) -> tuple[Sequence[EncodedSpan], int]:
        return await self._call(lambda connection: connection.queries.spans(query))

    async def find_resources(self, query: ResourcesQuery) -> tuple[Sequence[ResourcesUpdate], int]:
        return await self._call(lambda connection: connection.queries.resources(query))

    async def find_workers(self, query: WorkerQuery) -> tuple[Sequence[Worker], int]:
        return await self._call(lambda connection: connection.queries.workers(query))

    async def rollout_statuses(self, rollout_ids: Sequence[str]) -> dict[str, RolloutStatus]:
        return await self._call(lambda connection: connection.queries.statuses(rollout_ids))

    # -- the watchdog ----------------------------------------------------------------------------

    async def begin_scan(self, now: float, debounce: float) -> bool:
        if debounce <= 0:
            return True  # such a lease is always due
        return await self._call(
            lambda connection: connection.database.take_scan_lease(now, debounce)
        )

    async def find_watched(self) -> Sequence[RolloutRecord]:
        return await self._call(lambda connection: connection.queries.watched())
