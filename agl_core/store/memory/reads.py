"""The reading half of the memory store, on top of the state, the lock and the watchdog."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeVar

from agl_core.store.base import LightningStore
from agl_core.store.encoded import EncodedSpan
from agl_core.store.memory.search import find_rollouts, find_spans
from agl_core.store.memory.state import State
from agl_core.store.query import filter_options, renamed_filter, run_query
from agl_core.store.values import FilterLogic, LightningStoreStatistics
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
from agl_core.types._copying import (
    attach_attempt,
    construct,
    copy_attempt,
    copy_rollout,
    copy_snapshot,
    copy_worker,
)

__all__ = ["MemoryReads"]

T = TypeVar("T")

_SHORTEST_SLICE: Final = 0.05
"""Seconds between two looks of the watchdog while a call waits, without a debounce."""


class MemoryReads(LightningStore):
    """What the memory store tells, and what both of its halves need.

    Args:
        state: The tables.
        scan_debounce_seconds: Shortest time between two looks of the watchdog, in seconds.
    """

    def __init__(self, state: State, scan_debounce_seconds: float) -> None:
        self._state = state
        # Re-entrant, because a coroutine that is garbage-collected leaves its line, and that may
        # happen anywhere, also in a thread that holds the lock.
        self._lock = threading.RLock()
        self._scan_debounce = scan_debounce_seconds
        self._last_scan: float | None = None
        self._started = time.monotonic()

    async def statistics(self) -> LightningStoreStatistics:
        with self._lock:
            state = self._state
            return LightningStoreStatistics(
                name=type(self).__name__,
                total_rollouts=len(state.entries),
                total_attempts=state.attempt_count,
                total_spans=state.span_count,
                total_resources=len(state.resources),
                total_workers=len(state.workers),
                uptime=time.monotonic() - self._started,
                total_span_bytes=state.span_bytes,
                eviction_threshold_bytes=state.budget.eviction,
                safe_threshold_bytes=state.budget.safe,
                memory_capacity_bytes=state.budget.capacity,
            )

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
        status_in = renamed_filter("status_in", status_in, "status", status)
        rollout_id_in = renamed_filter("rollout_id_in", rollout_id_in, "rollout_ids", rollout_ids)
        with self._lock:
            self._scanned()
            entries, total = find_rollouts(
                self._state,
                status_in=status_in,
                rollout_id_in=rollout_id_in,
                rollout_id_contains=rollout_id_contains,
                filter_logic=filter_logic,
                sort_by=sort_by,
                sort_order=sort_order,
                limit=limit,
                offset=offset,
            )
            records = [(entry.rollout, entry.latest) for entry in entries]
        return _page([_joined(*record) for record in records], limit, offset, total)

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        with self._lock:
            self._scanned()
            entry = self._state.entries.get(rollout_id)
            attempts = () if entry is None else tuple(entry.attempts.values())
        found, total = run_query(
            attempts,
            Attempt,
            None,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )
        return _page([copy_attempt(attempt) for attempt in found], limit, offset, total)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        with self._lock:
            self._scanned()
            entry = self._state.entries.get(rollout_id)
            return None if entry is None else _joined(entry.rollout, entry.latest)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        with self._lock:
            self._scanned()
            entry = self._state.entries.get(rollout_id)
            if entry is None or entry.latest is None:
                return None
            return copy_attempt(entry.latest)

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
        with self._lock:
            snapshots = tuple(self._state.resources.values())
        found, total = run_query(
            snapshots,
            ResourcesUpdate,
            filter_options(resources_id=resources_id, resources_id_contains=resources_id_contains),
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )
        return _page([copy_snapshot(snapshot) for snapshot in found], limit, offset, total)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        with self._lock:
            found = self._state.resources.get(resources_id)
        return None if found is None else copy_snapshot(found)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        with self._lock:
            latest = self._state.latest_resources
        return None if latest is None else copy_snapshot(latest)

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
        with self._lock:
            self._scanned()
            workers = tuple(self._state.workers.values())
        found, total = run_query(
            workers,
            Worker,
            filter_options(
                logic=filter_logic, status_in=status_in, worker_id_contains=worker_id_contains
            ),
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )
        return _page([copy_worker(worker) for worker in found], limit, offset, total)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        with self._lock:
            worker = self._state.workers.get(worker_id)
        return None if worker is None else copy_worker(worker)

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
        filters = {
            "trace_id": trace_id,
            "trace_id_contains": trace_id_contains,
            "span_id": span_id,
            "span_id_contains": span_id_contains,
            "parent_id": parent_id,
            "parent_id_contains": parent_id_contains,
            "name": name,
            "name_contains": name_contains,
        }
        with self._lock:
            self._scanned()
            found, total = find_spans(
                self._state,
                rollout_id,
                attempt_id,
                filters,
                filter_logic=filter_logic,
                sort_by=sort_by,
                sort_order=sort_order,
                limit=limit,
                offset=offset,
            )
        return _page(found, limit, offset, total)

    # -- the watchdog ----------------------------------------------------------------------------

    async def run_watchdog(self) -> int:
        with self._lock:
            return self._scan(time.time())

    def _scanned(self) -> float:
        """Run the watchdog if it is its time; return the time."""
        now = time.time()
        self._scan(now)
        return now

    def _scan(self, now: float) -> int:
        state = self._state
        # Without anything to watch, neither the scan nor its debounce matters.
        if not state.watched:
            return 0
        moment = time.monotonic()
        if self._last_scan is not None and moment - self._last_scan < self._scan_debounce:
            return 0
        self._last_scan = moment
        verdicts = state.pass_verdicts(now)
        if verdicts:
            state.wake_line()
        return verdicts

    def _slice(self, remaining: float | None) -> float:
        """How long a waiting call may sleep before the watchdog must look again, in seconds."""
        period = max(self._scan_debounce, _SHORTEST_SLICE)
        return period if remaining is None else max(min(period, remaining), 0.0)


def _joined(rollout: Rollout, latest: Attempt | None) -> Rollout | AttemptedRollout:
    return copy_rollout(rollout) if latest is None else attach_attempt(rollout, latest)


def _page(items: Sequence[T], limit: int, offset: int, total: int) -> PaginatedResult[T]:
    values = {"items": items, "limit": limit, "offset": offset, "total": total}
    return construct(PaginatedResult[Any], values)
