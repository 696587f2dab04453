"""The storage backend in memory: tables behind one lock."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import ClassVar

from agl_core.errors import SpansEvictedError
from agl_core.plugins import has_listeners
from agl_core.store import (
    EncodedSpan,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    check_size,
)
from agl_core.types import (
    FINISHED_STATUSES,
    Attempt,
    ResourcesUpdate,
    Rollout,
    RolloutStatus,
    Worker,
    evolve,
)
from agl_store_kit import lifecycle
from agl_store_kit.backend import (
    HIGHEST_COUNTED_SEQUENCE_ID,
    ClaimRequest,
    Decide,
    DecideResources,
    DecideWorker,
    Notice,
    RolloutRecord,
    RolloutState,
    StorageBackend,
    attempt_not_found,
    notices_of,
    rollout_not_found,
    rollout_notice,
    worker_notice,
)
from agl_store_kit.figures import changed_figures
from agl_store_kit.filters import FIGURES, cut
from agl_store_kit.lifecycle import Change
from agl_store_kit.queries import (
    AttemptQuery,
    ResourcesQuery,
    RolloutQuery,
    SpanQuery,
    WorkerQuery,
    run_query_in_slices,
)
from agl_store_kit.slices import in_slices
from agl_store_memory.eviction import MemoryBudget
from agl_store_memory.index import RolloutIndexes
from agl_store_memory.scan import all_must_hold, scan
from agl_store_memory.spans import SpanLog

logger = logging.getLogger(__name__)


class _Entry:
    """One rollout with its attempts and spans. Records are never changed, only replaced."""

    __slots__ = ("attempts", "evicted", "figures", "latest", "ordinal", "rollout", "spans")

    def __init__(self, ordinal: int, rollout: Rollout) -> None:
        self.ordinal = ordinal
        self.rollout = rollout
        self.figures: dict[str, float | None] = {}
        self.attempts: dict[str, Attempt] = {}
        self.latest: Attempt | None = None
        self.spans: SpanLog | None = None
        self.evicted = False


class MemoryBackend(StorageBackend):
    """Keeps everything in this process. Safe for any number of threads and event loops.

    A call is one critical section, but for a query that looks at many rollouts: it holds the lock
    for a slice at a time, and sorts what it has read afterwards. Spans added as objects stay
    objects.

    Args:
        budget: Limit of the memory that spans take.
        thread_safe: Value of the capability ``thread_safe``; the backend is thread-safe anyway.
    """

    shares_records: ClassVar[bool] = True
    keeps_models: ClassVar[bool] = True

    def __init__(self, budget: MemoryBudget, *, thread_safe: bool = True) -> None:
        self.budget = budget
        # Re-entrant: the garbage collector may close a coroutine at any point, and so end its call
        # on a thread that is inside another call.
        self._lock = threading.RLock()
        self._ends: deque[Sequence[Notice]] = deque()
        self._turn = threading.Lock()
        self._thread_safe = thread_safe
        self._entries: dict[str, _Entry] = {}
        self._workers: dict[str, Worker] = {}
        self._resources: dict[str, ResourcesUpdate] = {}
        self._latest_resources: ResourcesUpdate | None = None
        self._queue: OrderedDict[str, _Entry] = OrderedDict()
        self._watched: dict[str, _Entry] = {}
        self._sequence_ids: dict[str, int] = {}
        # Of its own: an agent that emits a reward draws an id, and must not wait for a long query.
        self._ids_lock = threading.Lock()
        self._indexes = RolloutIndexes()
        self._attempt_count = 0
        self._span_count = 0
        self._span_bytes = 0

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=self._thread_safe, async_safe=True)

    async def statistics(self) -> LightningStoreStatistics:
        with self._lock:
            return LightningStoreStatistics(
                total_rollouts=len(self._entries),
                total_attempts=self._attempt_count,
                total_spans=self._span_count,
                total_resources=len(self._resources),
                total_workers=len(self._workers),
                total_span_bytes=self._span_bytes,
                eviction_threshold_bytes=self.budget.eviction,
                safe_threshold_bytes=self.budget.safe,
                memory_capacity_bytes=self.budget.capacity,
            )

    # -- changing --------------------------------------------------------------------------------

    async def insert_rollouts(
        self,
        rollouts: Sequence[Rollout],
        *,
        begin: Decide | None = None,
        worker_id: str | None = None,
    ) -> Sequence[RolloutRecord] | None:
        with self._lock:
            entries = self._entries
            for rollout in rollouts:
                if rollout.rollout_id in entries:
                    return None
            latest = self._latest_resources
            now = time.time()
            inserted: list[RolloutRecord] = []
            notices: list[Notice] = []
            for rollout in rollouts:
                if rollout.resources_id is None and latest is not None:
                    rollout = evolve(rollout, {"resources_id": latest.resources_id})
                entry = entries[rollout.rollout_id] = _Entry(len(entries), rollout)
                self._indexes.replace(entry, None, rollout)
                if begin is None:
                    self._queue[rollout.rollout_id] = entry
                    notices.append(rollout_notice(rollout, now))
                else:
                    state = RolloutState(rollout, 0, None, self._worker(worker_id))
                    self._apply(entry, state, begin(state))
                inserted.append((entry.rollout, entry.latest))
            self.tell(notices)
            return inserted

    async def claim(self, request: ClaimRequest) -> Sequence[tuple[Rollout, Attempt]]:
        claimed: list[tuple[Rollout, Attempt]] = []
        worker_id = request.worker_id
        with self._lock:
            while self._queue and len(claimed) < request.limit:
                entry = next(iter(self._queue.values()))
                state = RolloutState(
                    entry.rollout, len(entry.attempts), None, self._worker(worker_id)
                )
                self._apply(entry, state, request.begin(state, len(claimed)))
                assert entry.latest is not None
                claimed.append((entry.rollout, entry.latest))
            if not claimed and worker_id and request.idle is not None:
                self._put_worker(worker_id, request.idle)
        return claimed

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
        del key  # the store server remembers replies for as long as the data live
        with self._lock:
            entry = self._entry(rollout_id)
            if attempt_id == "latest":
                attempt = entry.latest
            else:
                attempt = entry.attempts.get(attempt_id)
            if worker_id is None and attempt is not None:
                worker_id = attempt.worker_id
            worker = self._worker(worker_id)
            state = RolloutState(entry.rollout, len(entry.attempts), attempt, worker)
            change = decide(state)
            if change is None:
                return entry.rollout, attempt
            self._apply(entry, state, change)
            record = entry.rollout, change.attempt or attempt
        if self._ends:
            self._announce_ends()
        return record

    def _announce_ends(self) -> None:
        """Announce, outside of the lock, what ended inside it; one thread at a time, in order."""
        # Checked again after the turn: another thread may have left ends meanwhile.
        while self._ends and self._turn.acquire(blocking=False):
            try:
                while self._ends:
                    self.announce(self._ends.popleft())
            finally:
                self._turn.release()

    def _apply(self, entry: _Entry, state: RolloutState, change: Change | None) -> None:
        if change is None:
            return
        rollout, attempt, worker, queue, _ = change
        if figures := changed_figures(state, change):
            entry.figures |= figures
        if attempt is not None:
            if state.attempt is None:
                self._attempt_count += 1
            latest = entry.latest
            if latest is None or attempt.sequence_id >= latest.sequence_id:
                entry.latest = attempt
            entry.attempts[attempt.attempt_id] = attempt
        if queue == "append":
            self._queue[entry.rollout.rollout_id] = entry
        elif queue == "remove":
            self._queue.pop(entry.rollout.rollout_id, None)
        if rollout is not None:
            before, entry.rollout = entry.rollout, rollout
            self._indexes.replace(entry, before, rollout)
            if lifecycle.is_watched(rollout):
                self._watched[rollout.rollout_id] = entry
            else:
                self._watched.pop(rollout.rollout_id, None)
        if worker is not None:
            self._workers[worker.worker_id] = worker
        notices = notices_of(state, change, time.time())
        self.tell(notices)
        if rollout is not None and rollout.end_time is not None and has_listeners():
            self._ends.append(notices)

    def _entry(self, rollout_id: str) -> _Entry:
        entry = self._entries.get(rollout_id)
        if entry is None:
            raise rollout_not_found(rollout_id)
        return entry

    def _worker(self, worker_id: str | None) -> Worker | None:
        return None if worker_id is None else self._workers.get(worker_id)

    async def put_resources(
        self,
        resources_id: str,
        decide: DecideResources,
        *,
        becomes_latest: bool,
        key: str | None = None,
    ) -> ResourcesUpdate:
        with self._lock:
            update = decide(self._resources.get(resources_id))
            self._resources[resources_id] = update
            if becomes_latest:
                self._latest_resources = update
            self.tell([Notice("resources", update.update_time, resources_id=resources_id)])
            return update

    async def change_worker(self, worker_id: str, decide: DecideWorker) -> Worker:
        with self._lock:
            return self._put_worker(worker_id, decide)

    def _put_worker(self, worker_id: str, decide: DecideWorker) -> Worker:
        before = self._workers.get(worker_id)
        worker = self._workers[worker_id] = decide(before)
        self.tell(worker_notice(before, worker, time.time()))
        return worker

    # -- spans -----------------------------------------------------------------------------------

    async def append_spans(
        self, spans: Sequence[EncodedSpan], arrived: Decide
    ) -> Sequence[EncodedSpan]:
        with self._lock:
            # What may raise, a user's estimator of sizes too, comes before the first change.
            arrivals: dict[tuple[str, str], tuple[_Entry, RolloutState, Change | None]] = {}
            sizes: list[int] = []
            for span in spans:
                ids = span.rollout_id, span.attempt_id
                if ids not in arrivals:
                    entry = self._entry(ids[0])
                    if ids[1] not in entry.attempts:
                        raise attempt_not_found(*ids)
                    state = self._state(entry, ids[1])
                    arrivals[ids] = entry, state, arrived(state)
                size = self.budget.size_of(span)
                check_size(span.span_id, size)
                sizes.append(size)
            counters = self._sequence_ids
            stored: list[EncodedSpan] = []
            alive: set[tuple[str, str]] = set()
            for span, size in zip(spans, sizes, strict=True):
                ids = span.rollout_id, span.attempt_id
                if counters.get(ids[0], 0) < span.sequence_id:  # the id was not drawn here
                    self._raise_sequence_id(span)
                entry = arrivals[ids][0]
                log = entry.spans
                if log is None:
                    log = entry.spans = SpanLog()
                if not log.add(span):
                    continue
                log.size += size
                self._span_bytes += size
                stored.append(span)
                alive.add(ids)
            self._span_count += len(stored)
            for ids, (entry, state, change) in arrivals.items():
                if ids not in alive:
                    continue
                if len(arrivals) > 1:  # one may have changed the rollout or worker of another
                    state = self._state(entry, ids[1])
                    change = arrived(state)
                self._apply(entry, state, change)
            if self._span_bytes > self.budget.eviction:
                self._evict()
            return stored

    def _state(self, entry: _Entry, attempt_id: str) -> RolloutState:
        attempt = entry.attempts[attempt_id]
        worker = self._worker(attempt.worker_id)
        return RolloutState(entry.rollout, len(entry.attempts), attempt, worker)

    def _evict(self) -> None:
        """Drop the spans of whole rollouts until the rest fits: finished first, oldest first."""
        before, rollouts, spans = self._span_bytes, 0, 0
        for entry in self._by_worth():
            if self._span_bytes <= self.budget.safe:
                break
            log = entry.spans
            assert log is not None
            rollouts += 1
            spans += len(log)
            self._span_bytes -= log.size
            entry.spans = None
            entry.evicted = True
        self._span_count -= spans
        logger.warning(
            "Evicted %d spans of %d rollouts from memory (%d of %d bytes, threshold %d)",
            spans,
            rollouts,
            before - self._span_bytes,
            before,
            self.budget.eviction,
        )

    def _by_worth(self) -> Iterator[_Entry]:
        holding = [entry for entry in self._entries.values() if entry.spans]
        heap = [
            (entry.rollout.status not in FINISHED_STATUSES, entry.rollout.start_time, at)
            for at, entry in enumerate(holding)
        ]
        # A heap and not a sort: an eviction usually stops after a few entries.
        heapq.heapify(heap)
        while heap:
            yield holding[heapq.heappop(heap)[2]]

    def _raise_sequence_id(self, span: EncodedSpan) -> None:
        counters, number = self._sequence_ids, span.sequence_id
        with self._ids_lock:
            if counters.get(span.rollout_id, 0) < number <= HIGHEST_COUNTED_SEQUENCE_ID:
                counters[span.rollout_id] = number

    async def draw_sequence_ids(self, rollout_ids: Sequence[str]) -> Sequence[int]:
        with self._ids_lock:
            drawn = self._sequence_ids
            numbers: list[int] = []
            for rollout_id in rollout_ids:
                drawn[rollout_id] = number = drawn.get(rollout_id, 0) + 1
                numbers.append(number)
            return numbers

    def draw_sequence_id_now(self, rollout_id: str) -> int:
        with self._ids_lock:
            number = self._sequence_ids[rollout_id] = self._sequence_ids.get(rollout_id, 0) + 1
            return number

    # -- reading ---------------------------------------------------------------------------------

    async def get_rollout(self, rollout_id: str) -> RolloutRecord | None:
        with self._lock:
            entry = self._entries.get(rollout_id)
            return None if entry is None else (entry.rollout, entry.latest)

    async def rollout_statuses(self, rollout_ids: Sequence[str]) -> dict[str, RolloutStatus]:
        return dict(await in_slices(self._statuses, rollout_ids))

    def _statuses(self, rollout_ids: Sequence[str]) -> Sequence[tuple[str, RolloutStatus]]:
        with self._lock:
            found = [(name, self._entries.get(name)) for name in rollout_ids]
            return [(name, entry.rollout.status) for name, entry in found if entry is not None]

    async def find_rollouts(self, query: RolloutQuery) -> tuple[Sequence[RolloutRecord], int]:
        given = query.conditions.keys()
        if given <= {"status_in"} and not _reads_all_sorted(query):
            return await self._find_in_index(query)
        with self._lock:
            entries = self._wanted(query)
            if len(entries) == 1 and given == {"rollout_id_in"}:  # most searches
                found = [(entries[0].rollout, entries[0].latest)]
                return cut(found, query.limit, query.offset), 1
        found, total = await scan(entries, query, self._lock)
        return [row[:2] for row in found], total

    async def _find_in_index(self, query: RolloutQuery) -> tuple[Sequence[RolloutRecord], int]:
        statuses = None if query.status_in is None else frozenset(query.status_in)
        while True:
            with self._lock:
                page = self._indexes.page(
                    statuses,
                    sort_by=query.sort_by,
                    sort_order=query.sort_order,
                    limit=query.limit,
                    offset=query.offset,
                )
                if page is not None:
                    return [(entry.rollout, entry.latest) for entry in page[0]], page[1]
                build = self._indexes.begin(
                    self._entries.values(), sort_by=query.sort_by, sort_order=query.sort_order
                )
            try:
                await build.run()
            finally:
                with self._lock:
                    self._indexes.end(build)

    def _wanted(self, query: RolloutQuery) -> Sequence[_Entry]:
        entries, ids = self._entries, query.rollout_id_in
        if ids is None or not all_must_hold(query):
            return list(entries.values())
        return [entries[name] for name in dict.fromkeys(ids) if name in entries]

    async def find_attempts(self, query: AttemptQuery) -> tuple[Sequence[Attempt], int]:
        with self._lock:
            entry = self._entries.get(query.rollout_id)
            attempts = () if entry is None else tuple(entry.attempts.values())
        return await run_query_in_slices(attempts, query)

    async def find_spans(self, query: SpanQuery) -> tuple[Sequence[EncodedSpan], int]:
        with self._lock:
            entry = self._entries.get(query.rollout_id)
            if entry is None:
                return (), 0
            if entry.evicted:
                raise SpansEvictedError(
                    f"The spans of rollout {query.rollout_id} were evicted from memory; use a "
                    "durable store, or raise eviction_memory_threshold"
                )
            if entry.spans is None:
                return (), 0
            found = entry.spans.find(query)
            if found is not None:
                return found
            spans, query = entry.spans.in_scope(query)
        return await run_query_in_slices(spans, query)

    async def find_resources(self, query: ResourcesQuery) -> tuple[Sequence[ResourcesUpdate], int]:
        with self._lock:
            snapshots = tuple(self._resources.values())
        return await run_query_in_slices(snapshots, query)

    async def get_resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        with self._lock:
            if resources_id is None:
                return self._latest_resources
            return self._resources.get(resources_id)

    async def find_workers(self, query: WorkerQuery) -> tuple[Sequence[Worker], int]:
        with self._lock:
            workers = tuple(self._workers.values())
        return await run_query_in_slices(workers, query)

    async def get_worker(self, worker_id: str) -> Worker | None:
        with self._lock:
            return self._workers.get(worker_id)

    # -- the watchdog ----------------------------------------------------------------------------

    def has_watched(self) -> bool:
        return bool(self._watched)

    async def find_watched(self) -> Sequence[RolloutRecord]:
        with self._lock:
            return [(entry.rollout, entry.latest) for entry in self._watched.values()]


def _reads_all_sorted(query: RolloutQuery) -> bool:
    """Return whether an index saves nothing, and its making would hold the event loop."""
    return query.sort_by in FIGURES or (query.sort_by is not None and query.limit == -1)
