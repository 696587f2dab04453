"""The memory store: the state behind one lock, and the callers that wait outside it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal

from agl_core import lifecycle
from agl_core.ids import new_resources_id
from agl_core.store.arguments import (
    attempt_changes,
    checked_resources,
    new_rollout_fields,
    rollout_changes,
    worker_changes,
)
from agl_core.store.base import UNSET, LightningStoreCapabilities, StoreEvent, Unset
from agl_core.store.encoded import EncodedSpan
from agl_core.store.memory.eviction import MemoryBudget, memory_capacity
from agl_core.store.memory.reads import MemoryReads
from agl_core.store.memory.state import Entry, State
from agl_core.store.waiting import FinishWait
from agl_core.types import (
    FINISHED_STATUSES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    TaskInput,
    Worker,
)
from agl_core.types._copying import (
    attach_attempt,
    copy_attempt,
    copy_rollout,
    copy_snapshot,
    copy_worker,
)

__all__ = ["InMemoryLightningStore"]


class InMemoryLightningStore(MemoryReads):
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
        super().__init__(State(budget), scan_debounce_seconds)
        self._thread_safe = thread_safe

    # -- about the store -------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=self._thread_safe, async_safe=True, events=True
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

    async def return_claim(self, rollout_id: str, attempt_id: str) -> None:
        with self._lock:
            now = self._scanned()
            entry = self._state.entry(rollout_id)
            attempt = entry.attempt(attempt_id)
            change = lifecycle.return_claim(
                entry.rollout,
                attempt,
                is_latest=entry.is_latest(attempt),
                worker=self._state.worker(attempt.worker_id),
                now=now,
            )
            self._state.apply(entry, change, now)
            self._state.wake_line()

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
        return copy_snapshot(update)

    # -- spans -----------------------------------------------------------------------------------

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        with self._lock:
            return self._state.add_spans(spans, time.time())

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        with self._lock:
            return self._state.draw_sequence_id(rollout_id)

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        with self._lock:
            draw = self._state.draw_sequence_id
            return [draw(rollout_id) for rollout_id, _ in rollout_attempt_ids]

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


def _finished(entries: Sequence[Entry]) -> list[Rollout]:
    return [
        copy_rollout(entry.rollout)
        for entry in entries
        if entry.rollout.status in FINISHED_STATUSES
    ]
