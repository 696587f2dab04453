"""The reading half of the MongoDB store, and how its calls reach the engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeVar

from agl_core.store import (
    BatchingStore,
    EncodedSpan,
    FilterLogic,
    LightningStoreStatistics,
    Page,
    renamed_filter,
)
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
from agl_store_mongo.config import MongoConfig
from agl_store_mongo.engine import Engine

__all__ = ["Reading"]

T = TypeVar("T")


class Reading(BatchingStore):
    """What a store of this configuration answers."""

    def _open(self, config: MongoConfig) -> None:
        self._config = config
        self._current = Engine(config)
        self._started = self._last_scan = time.monotonic()

    @property
    def _engine(self) -> Engine:
        # After a fork the parent's thread and connections are not ours to use.
        if self._current.pid != os.getpid():
            self._current = Engine(self._config)
        return self._current

    # -- calls, after the watchdog has looked ----------------------------------------------------

    async def _call(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        await self._scan_if_due()
        return await self._engine.call(work)

    async def run_watchdog(self) -> int:
        self._last_scan = time.monotonic()
        debounce = self._config.scan_debounce_seconds
        return await self._engine.call(lambda engine: engine.watchdog.pass_verdicts(debounce))

    async def _scan_if_due(self) -> None:
        if time.monotonic() - self._last_scan >= self._config.scan_debounce_seconds:
            await self.run_watchdog()

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
        return await self._call(
            lambda engine: engine.queries.rollouts(page, filter_logic, **conditions)
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
        return await self._call(lambda engine: engine.queries.attempts(page, rollout_id))

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        record = await self._call(lambda engine: engine.rollouts.find(rollout_id))
        return None if record is None else record.attached()

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        record = await self._call(lambda engine: engine.rollouts.find(rollout_id, light=True))
        return None if record is None else record.latest

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
        conditions = {"resources_id": resources_id, "resources_id_contains": resources_id_contains}
        return await self._call(lambda engine: engine.queries.resources(page, **conditions))

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return await self._engine.call(lambda engine: engine.resources.find(resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return await self._engine.call(lambda engine: engine.resources.find(None))

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
        return await self._call(
            lambda engine: engine.queries.workers(page, filter_logic, **conditions)
        )

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return await self._engine.call(lambda engine: engine.workers.find(worker_id))

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
        return await self._call(
            lambda engine: engine.queries.spans(
                page, rollout_id, attempt_id, filter_logic, **conditions
            )
        )

    async def statistics(self) -> LightningStoreStatistics:
        counts = await self._engine.call(lambda engine: engine.queries.counts())
        return LightningStoreStatistics(
            name=type(self).__name__,
            total_rollouts=counts["rollouts"],
            total_attempts=counts["attempts"],
            total_spans=counts["spans"],
            total_resources=counts["resources"],
            total_workers=counts["workers"],
            uptime=time.monotonic() - self._started,
        )
