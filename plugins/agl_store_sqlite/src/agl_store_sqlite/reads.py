"""The reading half of the SQLite store, and what both halves need: the engine and the watchdog."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from agl_core.store import (
    EncodedSpan,
    FilterLogic,
    LightningStoreCapabilities,
    LightningStoreStatistics,
)
from agl_core.store.batching import BatchingStore
from agl_core.store.filters import Page, renamed_filter
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutStatus,
    SortOrder,
    Worker,
    WorkerStatus,
)
from agl_store_sqlite import operations, queries
from agl_store_sqlite.config import SqliteConfig
from agl_store_sqlite.engine import Engine
from agl_store_sqlite.tables import Tables
from agl_store_sqlite.writer import FEW

__all__ = ["SqliteReads"]

_SHORTEST_SLICE: Final = 0.05
"""Seconds between two looks of the watchdog while a call waits, without a debounce."""


class SqliteReads(BatchingStore):
    """What the SQLite store tells. Reads see what was committed before they began.

    Args:
        config: The store's configuration.
    """

    def __init__(self, config: SqliteConfig) -> None:
        self._open(config)

    def _open(self, config: SqliteConfig) -> None:
        self._config = config
        self._current = Engine(config)
        self._started = self._last_scan = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        # The absolute path, because the other process may run elsewhere.
        return self._config.model_dump() | {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(SqliteConfig(**state))

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._current.path

    @property
    def _engine(self) -> Engine:
        # After a fork the parent's threads and connections are not ours to use.
        if self._current.pid != os.getpid():
            self._current = Engine(self._config)
        return self._current

    # -- about the store -------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=True, durable=True, events=True
        )

    async def statistics(self) -> LightningStoreStatistics:
        def read(tables: Tables) -> LightningStoreStatistics:
            counters = tables.counters()
            workers = tables.one("SELECT count(*) FROM workers")[0]
            resources = tables.one("SELECT count(*) FROM resources")[0]
            return LightningStoreStatistics(
                name=type(self).__name__,
                total_rollouts=counters["rollouts"],
                total_attempts=counters["attempts"],
                total_spans=counters["spans"],
                total_resources=resources,
                total_workers=workers,
                uptime=time.monotonic() - self._started,
                total_span_bytes=counters["span_bytes"],
            )

        return await self._read(read)

    async def close(self) -> None:
        self._current.close()

    # -- reading ---------------------------------------------------------------------------------

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout | AttemptedRollout]:
        conditions = {
            "status_in": renamed_filter("status_in", status_in, "status", status),
            "rollout_id_in": renamed_filter(
                "rollout_id_in", rollout_id_in, "rollout_ids", rollout_ids
            ),
            "rollout_id_contains": rollout_id_contains,
        }
        page = Page(sort_by, sort_order, limit, offset)
        run = self._look if 0 <= limit <= FEW and rollout_id_contains is None else self._read
        return await run(
            lambda tables: queries.find_rollouts(tables, page, filter_logic, **conditions)
        )

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        page = Page(sort_by, sort_order, limit, offset)
        return await self._read(lambda tables: queries.find_attempts(tables, page, rollout_id))

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        return await self._look(lambda tables: tables.find_attempted(rollout_id))

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        return await self._look(lambda tables: tables.find_attempt(rollout_id, "latest"))

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        page = Page(sort_by, sort_order, limit, offset)
        return await self._read(
            lambda tables: queries.find_resources(
                tables,
                page,
                resources_id=resources_id,
                resources_id_contains=resources_id_contains,
            )
        )

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return self._engine.look(lambda tables: tables.find_resources(resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return self._engine.look(lambda tables: tables.find_resources(None))

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        page = Page(sort_by, sort_order, limit, offset)
        conditions = {"status_in": status_in, "worker_id_contains": worker_id_contains}
        return await self._read(
            lambda tables: queries.find_workers(tables, page, filter_logic, **conditions)
        )

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return self._engine.look(lambda tables: tables.find_worker(worker_id))

    async def query_encoded_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[EncodedSpan]:
        page = Page(sort_by, sort_order, limit, offset)
        conditions = {
            "trace_id": trace_id,
            "trace_id_contains": trace_id_contains,
            "span_id": span_id,
            "span_id_contains": span_id_contains,
            "parent_id": parent_id,
            "parent_id_contains": parent_id_contains,
            "name": name,
            "name_contains": name_contains,
        }
        few = await self._look(lambda tables: tables.spans_at_most(rollout_id) <= FEW)
        run = self._look if few else self._read
        return await run(
            lambda tables: queries.find_spans(
                tables, page, rollout_id, attempt_id, filter_logic, **conditions
            )
        )

    # -- the watchdog ----------------------------------------------------------------------------

    async def run_watchdog(self) -> int:
        self._last_scan = time.monotonic()
        debounce = self._config.scan_debounce_seconds
        return await self._engine.write(
            partial(operations.pass_verdicts, debounce=debounce),
            records=2 * FEW,  # it looks at all that run
        )

    async def _scan_if_due(self) -> None:
        if time.monotonic() - self._last_scan >= self._config.scan_debounce_seconds:
            await self.run_watchdog()

    def _slice(self, remaining: float | None) -> float:
        """How long a waiting call may sleep before the watchdog must look again, in seconds."""
        period = max(self._config.scan_debounce_seconds, _SHORTEST_SLICE)
        return period if remaining is None else max(min(period, remaining), 0.0)

    async def _read(self, read: Callable[[Tables], Any]) -> Any:
        await self._scan_if_due()
        return await self._engine.read(read)

    async def _look(self, read: Callable[[Tables], Any]) -> Any:
        await self._scan_if_due()
        return self._engine.look(read)
