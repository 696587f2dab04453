"""The store engine: the store contract, once, on top of a storage backend.

Every changing call has the same steps: check the arguments, read from the backend, call
:mod:`agl_store_kit.lifecycle`, persist in the backend. The backend's notices then wake waiting
callers.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from agl_core.errors import AglError, AttemptEndedError, InvalidArgumentError
from agl_core.ids import new_attempt_id, new_resources_id, new_rollout_id
from agl_core.plugins import has_listeners
from agl_core.status import infrastructure_failures
from agl_core.store import (
    UNSET,
    EncodedSpan,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    StoreEvent,
    Unset,
    current_request_key,
    encode_span,
    hold_span,
    id_from_key,
)
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
    Span,
    TaskInput,
    Worker,
    attach_attempt,
    becomes_latest,
    construct,
    copy_attempt,
    copy_rollout,
    copy_snapshot,
    copy_worker,
    join_attempt,
)
from agl_store_kit import lifecycle
from agl_store_kit.arguments import (
    attempt_changes,
    checked_resources,
    new_rollout_fields,
    rollout_changes,
    worker_changes,
)
from agl_store_kit.backend import (
    ClaimRequest,
    RolloutRecord,
    RolloutState,
    StorageBackend,
    attempt_not_found,
)
from agl_store_kit.batching import BatchingStore
from agl_store_kit.figures import last_rewards
from agl_store_kit.filters import renamed_filter
from agl_store_kit.late_spans import late_seconds
from agl_store_kit.lifecycle import Change
from agl_store_kit.queries import (
    AttemptQuery,
    Query,
    ResourcesQuery,
    RolloutQuery,
    SpanQuery,
    WorkerQuery,
)
from agl_store_kit.slices import in_slices
from agl_store_kit.waiters import Waiters
from agl_store_kit.watchdog import Watchdog

if TYPE_CHECKING:
    from weakref import WeakSet

logger = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_INTEGER: Final = 2**63 - 1
"""Largest integer of a database column."""
_LONGEST_SLICE: Final = 10.0
"""Seconds after which a waiting call checks again without being woken: a notice of another process
may be lost."""


class _OtherVersionError(Exception):
    """A snapshot was replaced since it was read."""


class EngineStore(BatchingStore):
    """A store on a storage backend; a subclass only adds a constructor that creates the backend.

    As thread-safe as its backend; usable from several event loops. After a fork the child has no
    waiting callers.

    Args:
        backend: Keeps the data; belongs to the store, which closes it.
        scan_debounce_seconds: Shortest time between two scans of the watchdog, in seconds; 0 scans
            at every call whose result it may change.
    """

    def __init__(self, backend: StorageBackend, *, scan_debounce_seconds: float = 10.0) -> None:
        self._backend = backend
        self._copies = backend.shares_records
        self._watchdog = Watchdog(backend, scan_debounce_seconds)
        self._started = time.monotonic()
        self._waiters = Waiters()
        backend.subscribe(self._waiters)
        _stores.add(self)

    def _forget_waiters(self) -> None:
        """Drop the waiting callers of the parent process, whose locks may never be released."""
        self._watchdog = self._watchdog.renewed()
        self._waiters = Waiters()
        self._backend.subscribe(self._waiters)

    async def now(self) -> float:
        """Return the time of the data: this machine's, or that of a database that it shares."""
        clock = self._backend.clock
        return time.time() if clock is None else await clock.now()

    async def _scanned_at(self) -> float:
        """Let the watchdog scan if that is due, and return the time: the first step of a change."""
        if self._watchdog.is_due():
            await self._watchdog.scan()
        # Repeats now() instead of awaiting it: every change of a store passes here.
        clock = self._backend.clock
        return time.time() if clock is None else await clock.now()

    # -- about the store -------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        known: LightningStoreCapabilities = {
            "thread_safe": False,
            "async_safe": False,
            "zero_copy": False,
            "otlp_traces": False,
        }
        return {**known, **self._backend.capabilities, "events": True, "compare_and_set": True}

    async def statistics(self) -> LightningStoreStatistics:
        return {
            "name": type(self).__name__,
            "uptime": time.monotonic() - self._started,
            **await self._backend.statistics(),
        }

    async def close(self) -> None:
        """Close the backend; streams of :meth:`events` end."""
        await self._backend.close()
        self._waiters.close()

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
        now = await self._scanned_at()
        key = current_request_key.get()
        attempt_id = new_attempt_id() if key is None else id_from_key("at-", key, length=8)

        def begin(state: RolloutState) -> Change:
            return _begin(state, attempt_id, worker_id, now)

        (record,) = await self._insert([fields], now, key, begin=begin, worker_id=worker_id)
        return self._attempted(*record)

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        fields = new_rollout_fields(input, mode, resources_id, config, metadata)
        now = await self._scanned_at()
        ((rollout, _),) = await self._insert([fields], now, current_request_key.get())
        return copy_rollout(rollout) if self._copies else rollout

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        batch = await in_slices(lambda part: map(_new_fields, part), rollouts)
        if not batch:
            return []
        now = await self._scanned_at()
        records = await self._insert(batch, now, current_request_key.get())
        return await self._copied([rollout for rollout, _ in records], copy_rollout)

    async def _insert(
        self,
        batch: Sequence[dict[str, Any]],
        now: float,
        key: str | None,
        *,
        begin: Callable[[RolloutState], Change] | None = None,
        worker_id: str | None = None,
    ) -> Sequence[RolloutRecord]:
        while True:
            if len(batch) == 1:  # most calls
                rollouts = [_new_rollout(now, key, 0, batch[0])]
            else:
                new = partial(starmap, partial(_new_rollout, now, key))
                rollouts = await in_slices(new, [*enumerate(batch)])
            stored = await self._backend.insert_rollouts(rollouts, begin=begin, worker_id=worker_id)
            if stored is not None:
                return stored
            # An id exists already. A random one has collided: the loop draws new ids.
            if key is not None:
                # An earlier call with the same key has inserted them.
                ids = [rollout.rollout_id for rollout in rollouts]
                known, _ = await self._backend.find_rollouts(RolloutQuery(rollout_id_in=ids))
                by_id = {record[0].rollout_id: record for record in known}
                if len(by_id) < len(ids):
                    raise InvalidArgumentError(
                        "this idempotency key was used for another call: give each call its own"
                    )
                return [by_id[rollout_id] for rollout_id in ids]

    # -- claiming work ---------------------------------------------------------------------------

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        now = await self._scanned_at()
        key = current_request_key.get()
        claimed = await self._claim(limit, worker_id, key, now, note_idle=True)
        if not claimed and wait > 0 and limit > 0:
            claimed = await self._claim_waiting(limit, worker_id, key, wait)
        attempted = self._attempted
        if len(claimed) == 1:  # most calls
            return [attempted(*claimed[0])]
        return await in_slices(lambda part: [attempted(*record) for record in part], claimed)

    async def _claim(
        self, limit: int, worker_id: str | None, key: str | None, now: float, *, note_idle: bool
    ) -> Sequence[tuple[Rollout, Attempt]]:
        def begin(state: RolloutState, place: int) -> Change:
            attempt_id = _id_of_claim(key, place, state.attempt_count)
            return _begin(state, attempt_id, worker_id, now, dequeued=True)

        def idle(worker: Worker | None) -> Worker:
            assert worker_id
            return lifecycle.nothing_to_claim(worker_id, worker, now=now)

        return await self._backend.claim(
            ClaimRequest(limit, begin, worker_id, idle if worker_id and note_idle else None, key)
        )

    async def _claim_waiting(
        self, limit: int, worker_id: str | None, key: str | None, wait: float
    ) -> Sequence[tuple[Rollout, Attempt]]:
        deadline = time.monotonic() + wait
        async with self._backend.remote_changes():
            with self._waiters.waiting_claim() as place:
                while True:
                    self._waiters.look(place)
                    # The first claim has recorded the worker as idle; once is enough.
                    now = await self.now()
                    claimed = await self._claim(limit, worker_id, key, now, note_idle=False)
                    remaining = deadline - time.monotonic()
                    if claimed or remaining <= 0:
                        return claimed
                    await place.wakeup.wait(self._slice(remaining))
                    await self._watchdog.scan()

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        now = await self._scanned_at()
        key = current_request_key.get()
        attempt_id = new_attempt_id() if key is None else id_from_key("at-", key, length=8)

        def decide(state: RolloutState) -> Change | None:
            if state.attempt is not None:
                return None  # begun by an earlier call with the same key
            return _begin(state, attempt_id, worker_id, now)

        previous = await self._backend.get_latest_attempt(rollout_id)
        record = await self._backend.change(
            rollout_id, decide, attempt_id=attempt_id, worker_id=worker_id
        )
        if previous is not None and previous.attempt_id != attempt_id:
            await self._release_from(previous, now)
        return self._attempted(*record)

    async def _release_from(self, attempt: Attempt, now: float) -> None:
        """Free the worker of an attempt that went on elsewhere, if it is still on it."""
        if not attempt.worker_id:
            return
        known = await self._backend.get_worker(attempt.worker_id)
        if lifecycle.released_from(attempt, known, now=now) is None:
            return  # spares most calls the write

        def decide(worker: Worker | None) -> Worker:
            assert worker is not None  # nothing deletes workers
            return lifecycle.released_from(attempt, worker, now=now) or worker

        await self._backend.change_worker(attempt.worker_id, decide)

    async def return_claim(self, rollout_id: str, attempt_id: str) -> None:
        now = await self._scanned_at()
        attempts, _ = await self._backend.find_attempts(AttemptQuery(rollout_id=rollout_id))
        others = [attempt for attempt in attempts if attempt.attempt_id != attempt_id]
        lost = max(map(infrastructure_failures, others), default=0)

        def decide(state: RolloutState) -> Change:
            rollout, _, attempt, worker = state
            if attempt is None:
                raise attempt_not_found(rollout_id, attempt_id)
            return lifecycle.return_claim(
                rollout, attempt, is_latest=state.is_latest, worker=worker, now=now, lost=lost
            )

        await self._backend.change(rollout_id, decide, attempt_id=attempt_id, payload=False)

    # -- resources -------------------------------------------------------------------------------

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        key = current_request_key.get()
        resources_id = new_resources_id() if key is None else id_from_key("rs-", key)
        return await self._put_resources(resources_id, checked_resources(resources), key)

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        checked = checked_resources(resources)
        await self._watchdog.scan()
        return await self._put_resources(resources_id, checked, current_request_key.get())

    async def swap_resources(
        self, resources_id: str, resources: NamedResources, *, version: int
    ) -> ResourcesUpdate | None:
        checked = checked_resources(resources)
        try:
            return await self._put_resources(
                resources_id, checked, current_request_key.get(), version
            )
        except _OtherVersionError:
            return None

    async def _put_resources(
        self,
        resources_id: str,
        resources: NamedResources,
        key: str | None,
        expected: int | None = None,
    ) -> ResourcesUpdate:
        now = await self.now()

        def decide(known: ResourcesUpdate | None) -> ResourcesUpdate:
            if expected is not None and expected != (0 if known is None else known.version):
                raise _OtherVersionError
            return construct(
                ResourcesUpdate,
                {
                    "resources_id": resources_id,
                    "create_time": now if known is None else known.create_time,
                    "update_time": now,
                    "version": 1 if known is None else known.version + 1,
                    "resources": resources,
                },
            )

        update = await self._backend.put_resources(
            resources_id, decide, becomes_latest=becomes_latest(resources), key=key
        )
        return copy_snapshot(update) if self._copies else update

    # -- spans -----------------------------------------------------------------------------------

    def encode(self, span: Span) -> EncodedSpan:
        return hold_span(span) if self._backend.keeps_models else encode_span(span)

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        if not spans:
            return []
        for span in spans:
            if span.attempt_id == "latest" or not -_MAX_INTEGER <= span.sequence_id <= _MAX_INTEGER:
                raise _refused(span)
        now = await self.now()
        rewards = last_rewards(spans)
        grace = late_seconds.get()

        def arrived(state: RolloutState) -> Change:
            rollout, _, attempt, worker = state
            assert attempt is not None
            ended = None if grace is None else lifecycle.ended_at(rollout, attempt)
            if grace is not None and ended is not None and (not grace or now - ended > grace):
                raise AttemptEndedError(
                    f"attempt {attempt.attempt_id} has ended: no more spans"
                    + (f" after {grace:g} seconds" if grace else " before they are sent again")
                )
            change = lifecycle.span_arrived(
                rollout, attempt, is_latest=state.is_latest, worker=worker, now=now
            )
            reward = rewards.get((attempt.rollout_id, attempt.attempt_id))
            return change if reward is None else change._replace(reward=reward)

        stored = await self._backend.append_spans(spans, arrived)
        if len(stored) < len(spans):
            kept = {id(item) for item in stored}
            first = next(span for span in spans if id(span) not in kept)
            # One line per call: a line per span would cost a server more than storing the span.
            logger.error(
                "%d of %d spans are already stored and were skipped, the first: span %s of rollout "
                "%s attempt %s",
                len(spans) - len(stored),
                len(spans),
                first.span_id,
                first.rollout_id,
                first.attempt_id,
            )
        return stored

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int | None:
        return self._backend.draw_sequence_id_now(rollout_id)

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        if not rollout_attempt_ids:
            return []
        return await self._backend.draw_sequence_ids([ids[0] for ids in rollout_attempt_ids])

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
        now = await self._scanned_at()

        def decide(state: RolloutState) -> Change:
            return lifecycle.update_rollout(
                state.rollout, changes, attempt=state.attempt, worker=state.worker, now=now
            )

        key = _key_of_status(rollout_id, changes.get("status"))
        rollout, _ = await self._backend.change(rollout_id, decide, key=key)
        return copy_rollout(rollout) if self._copies else rollout

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
        now = await self._scanned_at()
        is_latest = attempt_id == "latest"
        before: Attempt | None = None

        def decide(state: RolloutState) -> Change:
            nonlocal before
            rollout, _, attempt, worker = state
            if attempt is None:
                raise attempt_not_found(rollout_id, attempt_id)
            before = attempt
            return lifecycle.update_attempt(
                rollout, attempt, changes, is_latest=state.is_latest, worker=worker, now=now
            )

        _, attempt = await self._backend.change(
            rollout_id,
            decide,
            attempt_id=attempt_id,
            worker_id=changes.get("worker_id"),
            # Only listeners to the end of rollouts read it.
            payload=has_listeners("rollout_ended"),
            # An attempt that is named ends once, however often it is said.
            key=_key_of_status(rollout_id, changes.get("status")) if is_latest else None,
        )
        assert attempt is not None
        if before is not None and before.worker_id != attempt.worker_id:
            await self._release_from(before, now)
        return copy_attempt(attempt) if self._copies else attempt

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        changes = worker_changes(worker_id, heartbeat_stats)
        now = await self.now()

        def decide(worker: Worker | None) -> Worker:
            return lifecycle.worker_heartbeat(worker_id, worker, changes, now=now)

        worker = await self._backend.change_worker(worker_id, decide)
        return copy_worker(worker) if self._copies else worker

    # -- reading ---------------------------------------------------------------------------------

    async def query_rollouts(
        self,
        *,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
        **filters: Any,
    ) -> PaginatedResult[Rollout | AttemptedRollout]:
        if status is not None:
            filters["status_in"] = renamed_filter(
                "status_in", filters.get("status_in"), "status", status
            )
        if rollout_ids is not None:
            filters["rollout_id_in"] = renamed_filter(
                "rollout_id_in", filters.get("rollout_id_in"), "rollout_ids", rollout_ids
            )
        query = RolloutQuery(**filters)
        await self._watchdog.scan()
        records, total = await self._backend.find_rollouts(query)
        join = self._joined
        if len(records) == 1:  # most searches
            return _page([join(*records[0])], query, total)
        items = await in_slices(lambda part: [join(*record) for record in part], records)
        return _page(items, query, total)

    async def query_attempts(
        self, rollout_id: str, *, sort_by: str | None = "sequence_id", **page: Any
    ) -> PaginatedResult[Attempt]:
        query = AttemptQuery(rollout_id=rollout_id, sort_by=sort_by, **page)
        await self._watchdog.scan()
        attempts, total = await self._backend.find_attempts(query)
        return _page(await self._copied(attempts, copy_attempt), query, total)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        await self._watchdog.scan()
        record = await self._backend.get_rollout(rollout_id)
        return None if record is None else self._joined(*record)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        await self._watchdog.scan()
        attempt = await self._backend.get_latest_attempt(rollout_id)
        return copy_attempt(attempt) if self._copies and attempt is not None else attempt

    async def query_resources(self, **filters: Any) -> PaginatedResult[ResourcesUpdate]:
        query = ResourcesQuery(**filters)
        snapshots, total = await self._backend.find_resources(query)
        return _page(await self._copied(snapshots, copy_snapshot), query, total)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return self._snapshot(await self._backend.get_resources(resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return self._snapshot(await self._backend.get_resources(None))

    async def query_workers(self, **filters: Any) -> PaginatedResult[Worker]:
        query = WorkerQuery(**filters)
        await self._watchdog.scan()
        workers, total = await self._backend.find_workers(query)
        return _page(await self._copied(workers, copy_worker), query, total)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        worker = await self._backend.get_worker(worker_id)
        return copy_worker(worker) if self._copies and worker is not None else worker

    async def query_encoded_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        sort_by: str | None = "sequence_id",
        **filters: Any,
    ) -> PaginatedResult[EncodedSpan]:
        query = SpanQuery(rollout_id=rollout_id, attempt_id=attempt_id, sort_by=sort_by, **filters)
        await self._watchdog.scan()
        if attempt_id == "latest":
            latest = await self._backend.get_latest_attempt(rollout_id)
            if latest is None:
                return _page([], query, 0)
            query = replace(query, attempt_id=latest.attempt_id)
        spans, total = await self._backend.find_spans(query)
        return _page(spans, query, total)

    # -- waiting ---------------------------------------------------------------------------------

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        await self._watchdog.scan()
        wanted = list(dict.fromkeys(rollout_ids))
        # A call may name a hundred thousand, most of which still run.
        statuses = await self._backend.rollout_statuses(wanted)
        ended = await _ended(statuses)
        at_once = timeout is not None and timeout <= 0
        if not at_once and len(ended) < len(statuses):
            await self._wait_for(list(statuses), timeout)
            ended = await _ended(await self._backend.rollout_statuses(wanted))
        if not ended:
            return []
        if len(ended) == 1:  # a query would take ten times as long
            record = await self._backend.get_rollout(ended[0])
            records = () if record is None else (record,)
        else:
            records, _ = await self._backend.find_rollouts(RolloutQuery(rollout_id_in=ended))
        found = {rollout.rollout_id: rollout for rollout, _ in records}
        finished = [
            found[name] for name in wanted if name in found and _is_finished(found[name].status)
        ]
        return await self._copied(finished, copy_rollout)

    async def _wait_for(self, rollout_ids: Sequence[str], timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        waiters, backend = self._waiters, self._backend
        async with backend.remote_changes():
            with waiters.finish_wait(rollout_ids) as wait:
                while True:
                    waiters.reset(wait)
                    statuses = await backend.rollout_statuses(rollout_ids)
                    finished = await _ended(statuses)
                    waiters.settle(wait, finished)
                    if len(finished) == len(statuses):
                        return
                    again = time.monotonic() + _LONGEST_SLICE
                    while not wait.wakeup.is_set() and time.monotonic() < again:
                        remaining = None if deadline is None else deadline - time.monotonic()
                        if remaining is not None and remaining <= 0:
                            return
                        await wait.wakeup.wait(self._slice(remaining))
                        await self._watchdog.scan()

    async def events(self) -> AsyncGenerator[StoreEvent]:
        waiters = self._waiters
        subscription = waiters.subscribe()
        try:
            async with self._backend.remote_changes():
                more = True
                while more:
                    batch, more = waiters.take(subscription)
                    for event in batch:
                        yield event
                    if more:
                        await subscription.wakeup.wait()
        finally:
            waiters.unsubscribe(subscription)

    # -- the watchdog ----------------------------------------------------------------------------

    async def run_watchdog(self) -> int:
        return await self._watchdog.scan()

    def _slice(self, remaining: float | None) -> float:
        """Return the number of seconds that a waiting call may sleep until its next check."""
        period = min(self._watchdog.period, _LONGEST_SLICE)
        return period if remaining is None else max(min(period, remaining), 0.0)

    # -- records out -----------------------------------------------------------------------------

    def _attempted(self, rollout: Rollout, attempt: Attempt | None) -> AttemptedRollout:
        assert attempt is not None
        return (attach_attempt if self._copies else join_attempt)(rollout, attempt)

    def _joined(self, rollout: Rollout, attempt: Attempt | None) -> Rollout | AttemptedRollout:
        if attempt is not None:
            return (attach_attempt if self._copies else join_attempt)(rollout, attempt)
        return copy_rollout(rollout) if self._copies else rollout

    def _snapshot(self, found: ResourcesUpdate | None) -> ResourcesUpdate | None:
        return copy_snapshot(found) if self._copies and found is not None else found

    async def _copied(self, records: Sequence[T], copy: Callable[[T], T]) -> Sequence[T]:
        if not self._copies:
            return records
        return await in_slices(lambda part: map(copy, part), records)


_stores: Final[WeakSet[EngineStore]] = weakref.WeakSet()


def _forget_waiters_after_fork() -> None:
    for store in _stores:
        store._forget_waiters()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_waiters_after_fork)


# -- decisions -------------------------------------------------------------------------------------


def _new_fields(request: EnqueueRolloutRequest) -> dict[str, Any]:
    return new_rollout_fields(
        request.input, request.mode, request.resources_id, request.config, request.metadata
    )


def _new_rollout(now: float, key: str | None, place: int, fields: dict[str, Any]) -> Rollout:
    """Return a rollout with an id of its own; under a key, the id of its place in the call."""
    rollout_id = new_rollout_id() if key is None else id_from_key("ro-", key, place)
    return lifecycle.new_rollout(rollout_id=rollout_id, now=now, **fields)


def _begin(
    state: RolloutState,
    attempt_id: str,
    worker_id: str | None,
    now: float,
    *,
    dequeued: bool = False,
) -> Change:
    return lifecycle.begin_attempt(
        state.rollout,
        attempt_id=attempt_id,
        sequence_id=state.attempt_count + 1,
        now=now,
        worker_id=worker_id,
        worker=state.worker,
        dequeued=dequeued,
    )


def _id_of_claim(key: str | None, place: int, earlier: int) -> str:
    """Return the id of a claimed attempt.

    A claim that was returned may be repeated under its key, on the same rollout: its attempt is
    another one, so the number of earlier attempts is part of the id.
    """
    if key is None:
        return new_attempt_id()
    return id_from_key("at-", f"{key}#{earlier}" if earlier else key, place, length=8)


def _key_of_status(rollout_id: str, status: str | None) -> str | None:
    """Return the key of a change of status, unlike those of other calls under the caller's key."""
    key = current_request_key.get()
    return None if key is None or status is None else f"{key}/{rollout_id}/{status}"


def _refused(span: EncodedSpan) -> AglError:
    if span.attempt_id == "latest":
        # The word is an alias in queries and updates. A span keeps the id of its attempt.
        return attempt_not_found(span.rollout_id, span.attempt_id)
    return InvalidArgumentError(f"sequence_id {span.sequence_id} does not fit in 64 bits")


async def _ended(statuses: Mapping[str, RolloutStatus]) -> list[str]:
    def finished(part: Sequence[tuple[str, RolloutStatus]]) -> list[str]:
        return [name for name, status in part if _is_finished(status)]

    return await in_slices(finished, list(statuses.items()))


def _is_finished(status: RolloutStatus) -> bool:
    return status in FINISHED_STATUSES


_AnyPage: Final = PaginatedResult[Any]  # pydantic looks a parametrised class up in 3 us


def _page(items: Sequence[T], query: Query, total: int) -> PaginatedResult[T]:
    values = {"items": items, "limit": query.limit, "offset": query.offset, "total": total}
    return construct(_AnyPage, values)
