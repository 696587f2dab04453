"""The memory store: the state behind one lock, and the callers that wait outside it."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Literal, TypeVar

from agl_core import lifecycle
from agl_core.ids import new_resources_id
from agl_core.store.arguments import (
    attempt_changes,
    checked_resources,
    copy_resources,
    new_rollout_fields,
    rollout_changes,
    worker_changes,
)
from agl_core.store.base import (
    UNSET,
    FilterLogic,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    StoreEvent,
    Unset,
)
from agl_core.store.encoded import EncodedSpan
from agl_core.store.memory.eviction import MemoryBudget, memory_capacity
from agl_core.store.memory.reading import find_rollouts, find_spans
from agl_core.store.memory.state import Entry, State
from agl_core.store.memory.waiting import FinishWait
from agl_core.store.query import filter_options, run_query
from agl_core.types import (
    FINISHED_STATUSES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    SortOrder,
    Span,
    TaskInput,
    Worker,
    WorkerStatus,
)
from agl_core.types.copying import (
    attach_attempt,
    construct,
    copy_attempt,
    copy_rollout,
    copy_worker,
    evolve,
)

__all__ = ["InMemoryLightningStore"]

T = TypeVar("T")

_SHORTEST_SLICE: Final = 0.05


class InMemoryLightningStore(LightningStore):
    """Keeps everything in this process's memory; nothing survives it.

    Safe for any number of threads, each with its own event loop, and for several loops in
    succession. No call blocks longer than another's bookkeeping takes.

    When spans take more memory than ``eviction_memory_threshold``, those of whole rollouts are
    dropped, finished ones first and oldest first, until they take no more than
    ``safe_memory_threshold``.

    Args:
        thread_safe: What the capability ``thread_safe`` says. The store is in any case.
        eviction_memory_threshold: A ratio of the machine's memory (a float in (0, 1]) or bytes (an
            int); None means 0.7.
        safe_memory_threshold: Likewise, a float in [0, 1] or bytes; None means 80 % of the
            eviction threshold.
        span_size_estimator: Returns a span's size in bytes; None measures its JSON. A function
            given here makes every span be decoded once more.
        scan_debounce_seconds: Shortest time between two looks of the watchdog; 0 looks at every
            call that may show its verdicts.

    Raises:
        InvalidArgumentError: A threshold is out of range, or safe is not below eviction.
    """

    def __init__(
        self,
        *,
        thread_safe: bool = True,
        eviction_memory_threshold: float | int | None = None,
        safe_memory_threshold: float | int | None = None,
        span_size_estimator: Callable[[Span], int] | None = None,
        scan_debounce_seconds: float = 10.0,
    ) -> None:
        budget = MemoryBudget(
            eviction_memory_threshold,
            safe_memory_threshold,
            span_size_estimator,
            memory_capacity(),
        )
        self._thread_safe = thread_safe
        self._state = State(budget)
        # Re-entrant, because a coroutine that is garbage-collected leaves its line, and that may
        # happen anywhere, also in a thread that holds the lock.
        self._lock = threading.RLock()
        self._scan_debounce = scan_debounce_seconds
        self._last_scan: float | None = None
        self._started = time.monotonic()

    # -- about the store -------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=self._thread_safe, async_safe=True, events=True
        )

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

    async def close(self) -> None:
        """End the streams of :meth:`events`."""
        with self._lock:
            self._state.bus.close()

    # -- creating work ---------------------------------------------------------------------------

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        fields = new_rollout_fields(input, mode, resources_id, config, metadata)
        with self._lock:
            now = self._scanned()
            entry = self._state.create(fields, now)
            attempt = self._state.begin_attempt(entry, worker_id, now)
            return attach_attempt(entry.rollout, attempt)

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        fields = new_rollout_fields(input, mode, resources_id, config, metadata)
        with self._lock:
            now = self._scanned()
            entry = self._state.create(fields, now)
            self._state.enqueue(entry, now)
            self._state.wake_line()
            rollout = entry.rollout
        return copy_rollout(rollout)

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        batch = [
            new_rollout_fields(item.input, item.mode, item.resources_id, item.config, item.metadata)
            for item in rollouts
        ]
        created: list[Rollout] = []
        with self._lock:
            now = self._scanned()
            for fields in batch:
                entry = self._state.create(fields, now)
                self._state.enqueue(entry, now)
                created.append(entry.rollout)
            self._state.wake_line()
        return [copy_rollout(rollout) for rollout in created]

    # -- claiming work ---------------------------------------------------------------------------

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        with self._lock:
            now = self._scanned()
            claimed = self._claim(limit, worker_id, now)
            if not claimed and worker_id:
                worker = lifecycle.nothing_to_claim(
                    worker_id, self._state.worker(worker_id), now=now
                )
                self._state.put_worker(worker, now)
            if claimed or wait <= 0 or limit <= 0:
                return claimed
            ticket, wakeup = self._state.line.join()
        deadline = time.monotonic() + wait
        try:
            while True:
                remaining = deadline - time.monotonic()
                await wakeup.wait(self._slice(remaining))
                with self._lock:
                    claimed = self._claim(limit, worker_id, self._scanned())
                    if claimed or time.monotonic() >= deadline:
                        return claimed
                    self._state.line.resume(ticket)
        finally:
            with self._lock:
                self._state.line.leave(ticket)
                self._state.wake_line()

    def _claim(self, limit: int, worker_id: str | None, now: float) -> list[AttemptedRollout]:
        state = self._state
        claimed: list[AttemptedRollout] = []
        while state.queue and len(claimed) < limit:
            entry = next(iter(state.queue.values()))
            attempt = state.begin_attempt(entry, worker_id, now, dequeued=True)
            claimed.append(attach_attempt(entry.rollout, attempt))
        return claimed

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        with self._lock:
            now = self._scanned()
            entry = self._state.entry(rollout_id)
            attempt = self._state.begin_attempt(entry, worker_id, now)
            return attach_attempt(entry.rollout, attempt)

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
        if status is not None:
            _deprecated("status", "status_in")
        if rollout_ids is not None:
            _deprecated("rollout_ids", "rollout_id_in")
        with self._lock:
            self._scanned()
            entries, total = find_rollouts(
                self._state,
                status_in=status if status_in is None else status_in,
                rollout_id_in=rollout_ids if rollout_id_in is None else rollout_id_in,
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
        return _page([_copy_snapshot(snapshot) for snapshot in found], limit, offset, total)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        with self._lock:
            found = self._state.resources.get(resources_id)
        return None if found is None else _copy_snapshot(found)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        with self._lock:
            latest = self._state.latest_resources
        return None if latest is None else _copy_snapshot(latest)

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

    # -- resources -------------------------------------------------------------------------------

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        checked = checked_resources(resources)
        with self._lock:
            return self._put_resources(new_resources_id(), checked, time.time())

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        checked = checked_resources(resources)
        with self._lock:
            return self._put_resources(resources_id, checked, self._scanned())

    def _put_resources(
        self, resources_id: str, resources: NamedResources, now: float
    ) -> ResourcesUpdate:
        known = self._state.resources.get(resources_id)
        update = ResourcesUpdate(
            resources_id=resources_id,
            create_time=now if known is None else known.create_time,
            update_time=now,
            version=1 if known is None else known.version + 1,
            resources=resources,
        )
        self._state.put_resources(update, now)
        return _copy_snapshot(update)

    # -- spans -----------------------------------------------------------------------------------

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        with self._lock:
            return self._state.add_spans(spans, time.time())

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        with self._lock:
            drawn: list[int] = []
            counters = self._state.sequence_ids
            for rollout_id, _ in rollout_attempt_ids:
                counters[rollout_id] = number = counters.get(rollout_id, 0) + 1
                drawn.append(number)
            return drawn

    # -- updates ---------------------------------------------------------------------------------

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | None | Unset = UNSET,
        resources_id: str | None | Unset = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | None | Unset = UNSET,
    ) -> Rollout:
        changes = rollout_changes(
            input=input,
            mode=mode,
            resources_id=resources_id,
            status=status,
            config=config,
            metadata=metadata,
        )
        with self._lock:
            now = self._scanned()
            entry = self._state.entry(rollout_id)
            latest = entry.latest
            change = lifecycle.update_rollout(
                entry.rollout,
                changes,
                attempt=latest,
                worker=None if latest is None else self._state.worker(latest.worker_id),
                now=now,
            )
            self._state.apply(entry, change, now)
            self._state.wake_line()
            return copy_rollout(entry.rollout)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"],
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | None | Unset = UNSET,
    ) -> Attempt:
        changes = attempt_changes(
            status=status,
            worker_id=worker_id,
            last_heartbeat_time=last_heartbeat_time,
            metadata=metadata,
        )
        with self._lock:
            now = self._scanned()
            entry = self._state.entry(rollout_id)
            attempt = entry.attempt(attempt_id)
            self._state.update_attempt(entry, attempt, changes, now)
            self._state.wake_line()
            return copy_attempt(entry.attempts[attempt.attempt_id])

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        changes = worker_changes(worker_id, heartbeat_stats)
        with self._lock:
            now = time.time()
            known = self._state.worker(worker_id)
            worker = lifecycle.worker_heartbeat(worker_id, known, changes, now=now)
            self._state.put_worker(worker, now)
            return copy_worker(worker)

    # -- waiting ---------------------------------------------------------------------------------

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        state = self._state
        with self._lock:
            self._scanned()
            entries = [
                state.entries[name] for name in dict.fromkeys(rollout_ids) if name in state.entries
            ]
            pending = {
                entry.rollout.rollout_id
                for entry in entries
                if entry.rollout.status not in FINISHED_STATUSES
            }
            if not pending or (timeout is not None and timeout <= 0):
                return _finished(entries)
            wait = FinishWait(pending)
            watched = {entry.rollout.rollout_id for entry in entries}
            state.waits.add(wait, watched)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                remaining = None if deadline is None else deadline - time.monotonic()
                await wait.wakeup.wait(self._slice(remaining))
                with self._lock:
                    self._scanned()
                    if not wait.pending or (deadline is not None and time.monotonic() >= deadline):
                        return _finished(entries)
                    wait.wakeup.clear()
        finally:
            with self._lock:
                state.waits.remove(wait, watched)

    async def events(self) -> AsyncIterator[StoreEvent]:
        bus = self._state.bus
        with self._lock:
            subscription = bus.subscribe()
        try:
            while True:
                with self._lock:
                    batch = subscription.take()
                    closed = bus.closed
                for event in batch:
                    yield event
                if closed:
                    return
                await subscription.wakeup.wait()
        finally:
            with self._lock:
                bus.unsubscribe(subscription)

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


def _finished(entries: Sequence[Entry]) -> list[Rollout]:
    return [
        copy_rollout(entry.rollout)
        for entry in entries
        if entry.rollout.status in FINISHED_STATUSES
    ]


def _copy_snapshot(snapshot: ResourcesUpdate) -> ResourcesUpdate:
    return evolve(snapshot, {"resources": copy_resources(snapshot.resources)})


def _page(items: Sequence[T], limit: int, offset: int, total: int) -> PaginatedResult[T]:
    values = {"items": items, "limit": limit, "offset": offset, "total": total}
    return construct(PaginatedResult[Any], values)


def _deprecated(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)
