"""Everything the memory store holds, and the one way to change it."""

from __future__ import annotations

import heapq
import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from agl_core import lifecycle
from agl_core.errors import AttemptNotFoundError, RolloutNotFoundError
from agl_core.ids import new_attempt_id, new_rollout_id
from agl_core.lifecycle import Change
from agl_core.store.encoded import EncodedSpan
from agl_core.store.events import EventBus
from agl_core.store.memory.eviction import MemoryBudget
from agl_core.store.memory.index import RolloutIndexes
from agl_core.store.memory.spans import SpanLog
from agl_core.store.waiting import FinishWaits, WorkLine
from agl_core.types import (
    FINISHED_STATUSES,
    Attempt,
    ResourcesUpdate,
    Rollout,
    Worker,
    becomes_latest,
)

__all__ = ["Entry", "State"]

logger = logging.getLogger(__name__)


class Entry:
    """One rollout and what belongs to it. The records are immutable by convention."""

    __slots__ = ("attempts", "evicted", "latest", "ordinal", "rollout", "spans")

    def __init__(self, ordinal: int, rollout: Rollout) -> None:
        self.ordinal = ordinal
        self.rollout = rollout
        self.attempts: dict[str, Attempt] = {}
        self.latest: Attempt | None = None
        self.spans: SpanLog | None = None
        self.evicted = False

    def attempt(self, attempt_id: str) -> Attempt:
        """Return an attempt by id, or the one with the highest sequence id for ``"latest"``."""
        found = self.latest if attempt_id == "latest" else self.attempts.get(attempt_id)
        if found is None:
            rollout_id = self.rollout.rollout_id
            raise AttemptNotFoundError(f"Attempt {attempt_id} not found in rollout {rollout_id}")
        return found

    def is_latest(self, attempt: Attempt) -> bool:
        return self.latest is not None and self.latest.attempt_id == attempt.attempt_id


class State:
    """The tables of the store. Not thread-safe; the store's lock guards it."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.entries: dict[str, Entry] = {}
        self.workers: dict[str, Worker] = {}
        self.resources: dict[str, ResourcesUpdate] = {}
        self.latest_resources: ResourcesUpdate | None = None
        self.queue: OrderedDict[str, Entry] = OrderedDict()
        self.watched: dict[str, Entry] = {}
        """Entries that the watchdog has to look at."""
        self.sequence_ids: dict[str, int] = {}
        self.indexes = RolloutIndexes()
        self.line = WorkLine()
        self.waits = FinishWaits()
        self.bus = EventBus()
        self.attempt_count = 0
        self.span_count = 0
        self.span_bytes = 0

    def entry(self, rollout_id: str) -> Entry:
        """Return the entry of a rollout.

        Raises:
            RolloutNotFoundError: There is none.
        """
        entry = self.entries.get(rollout_id)
        if entry is None:
            raise RolloutNotFoundError(f"Rollout {rollout_id} not found")
        return entry

    # -- rollouts and attempts -------------------------------------------------------------------

    def create(self, fields: dict[str, Any], now: float) -> Entry:
        """Add a rollout that is not in the queue yet, with the latest resources if none is named.

        Args:
            fields: What :func:`agl_core.store.arguments.new_rollout_fields` returns.
            now: The time, in epoch seconds.
        """
        rollout_id = new_rollout_id()
        while rollout_id in self.entries:
            rollout_id = new_rollout_id()
        if fields["resources_id"] is None and self.latest_resources is not None:
            fields["resources_id"] = self.latest_resources.resources_id
        rollout = lifecycle.new_rollout(rollout_id=rollout_id, now=now, **fields)
        entry = self.entries[rollout_id] = Entry(len(self.entries), rollout)
        self.indexes.replace(entry, None, rollout)
        return entry

    def enqueue(self, entry: Entry, now: float) -> None:
        """Put a new rollout at the tail of the queue."""
        rollout = entry.rollout
        self.queue[rollout.rollout_id] = entry
        self.bus.tell("rollout", now, rollout_id=rollout.rollout_id, status=rollout.status)

    def begin_attempt(
        self, entry: Entry, worker_id: str | None, now: float, *, dequeued: bool = False
    ) -> Attempt:
        """Start an attempt; see :func:`agl_core.lifecycle.begin_attempt`."""
        attempt_id = new_attempt_id()
        while attempt_id in entry.attempts:
            attempt_id = new_attempt_id()
        change = lifecycle.begin_attempt(
            entry.rollout,
            attempt_id=attempt_id,
            sequence_id=len(entry.attempts) + 1,
            now=now,
            worker_id=worker_id,
            worker=self.worker(worker_id),
            dequeued=dequeued,
        )
        self.apply(entry, change, now)
        return entry.attempts[attempt_id]

    def worker(self, worker_id: str | None) -> Worker | None:
        return None if worker_id is None else self.workers.get(worker_id)

    def apply(self, entry: Entry, change: Change, now: float) -> None:
        """Carry out what the lifecycle said. Wakes nobody for work; see :meth:`wake_line`."""
        rollout, attempt, worker, queue = change
        if attempt is not None:
            self._put_attempt(entry, attempt, now)
        if queue == "append":
            self.queue[entry.rollout.rollout_id] = entry
        elif queue == "remove":
            self.queue.pop(entry.rollout.rollout_id, None)
        if rollout is not None:
            self._put_rollout(entry, rollout, now)
        if worker is not None:
            self.put_worker(worker, now)

    def wake_line(self) -> None:
        """Wake as many of those who wait for work as there is work."""
        if self.line:
            self.line.wake(len(self.queue))

    def _put_rollout(self, entry: Entry, rollout: Rollout, now: float) -> None:
        before = entry.rollout
        entry.rollout = rollout
        rollout_id = rollout.rollout_id
        self.indexes.replace(entry, before, rollout)
        if lifecycle.is_watched(rollout):
            self.watched[rollout_id] = entry
        else:
            self.watched.pop(rollout_id, None)
        was_finished = before.status in FINISHED_STATUSES
        if was_finished != (rollout.status in FINISHED_STATUSES):
            if was_finished:
                self.waits.reopened(rollout_id)
            else:
                self.waits.finished(rollout_id)
        self.bus.tell("rollout", now, rollout_id=rollout_id, status=rollout.status)

    def _put_attempt(self, entry: Entry, attempt: Attempt, now: float) -> None:
        before = entry.attempts.get(attempt.attempt_id)
        entry.attempts[attempt.attempt_id] = attempt
        if before is None:
            self.attempt_count += 1
        if before is None or entry.is_latest(attempt):
            entry.latest = attempt
        if before is None or before.status != attempt.status:
            self.bus.tell(
                "attempt",
                now,
                rollout_id=attempt.rollout_id,
                attempt_id=attempt.attempt_id,
                worker_id=attempt.worker_id,
                status=attempt.status,
            )

    def put_worker(self, worker: Worker, now: float) -> None:
        """Store a worker; a change of status or assignment or a heartbeat is told to listeners."""
        before = self.workers.get(worker.worker_id)
        self.workers[worker.worker_id] = worker
        if before is None or (
            (before.status, before.current_attempt_id, before.last_heartbeat_time)
            != (worker.status, worker.current_attempt_id, worker.last_heartbeat_time)
        ):
            self.bus.tell(
                "worker",
                now,
                worker_id=worker.worker_id,
                status=worker.status,
                rollout_id=worker.current_rollout_id,
                attempt_id=worker.current_attempt_id,
            )

    def put_resources(self, update: ResourcesUpdate, now: float) -> None:
        """Store a snapshot; it becomes the latest, unless it is a checkpoint."""
        self.resources[update.resources_id] = update
        if becomes_latest(update.resources):
            self.latest_resources = update
        self.bus.tell("resources", now, resources_id=update.resources_id)

    def pass_verdicts(self, now: float) -> int:
        """Let the watchdog look at every watched rollout; return how many verdicts there were."""
        verdicts = 0
        for entry in list(self.watched.values()):
            attempt = entry.latest
            if attempt is None:
                rollout_id = entry.rollout.rollout_id
                logger.warning("Rollout %s runs without an attempt; not watched", rollout_id)
                continue
            status = lifecycle.verdict(entry.rollout, attempt, now=now)
            if status is not None:
                self.update_attempt(entry, attempt, {"status": status}, now)
                verdicts += 1
        return verdicts

    def update_attempt(
        self, entry: Entry, attempt: Attempt, changes: dict[str, Any], now: float
    ) -> None:
        """Write fields of an attempt; see :func:`agl_core.lifecycle.update_attempt`."""
        worker_id = changes.get("worker_id", attempt.worker_id)
        change = lifecycle.update_attempt(
            entry.rollout,
            attempt,
            changes,
            is_latest=entry.is_latest(attempt),
            worker=self.worker(worker_id),
            now=now,
        )
        self.apply(entry, change, now)

    # -- spans -----------------------------------------------------------------------------------

    def draw_sequence_id(self, rollout_id: str) -> int:
        """Return the rollout's next span sequence id; an unknown rollout starts a counter."""
        number = self.sequence_ids[rollout_id] = self.sequence_ids.get(rollout_id, 0) + 1
        return number

    def add_spans(self, spans: Sequence[EncodedSpan], now: float) -> list[EncodedSpan]:
        """Store spans and return those that were not stored before; all or nothing on errors."""
        for span in spans:
            self.entry(span.rollout_id).attempt(span.attempt_id)
        sizes = [self.budget.size_of(span) for span in spans]
        stored: list[EncodedSpan] = []
        alive: dict[tuple[str, str], Entry] = {}
        for span, size in zip(spans, sizes, strict=True):
            rollout_id = span.rollout_id
            if self.sequence_ids.get(rollout_id, 0) < span.sequence_id:
                self.sequence_ids[rollout_id] = span.sequence_id
            entry = self.entries[rollout_id]
            log = entry.spans
            if log is None:
                log = entry.spans = SpanLog()
            key = (span.attempt_id, span.span_id)
            if key in log:
                logger.error(
                    "Span %s of rollout %s attempt %s is already stored; skipped",
                    span.span_id,
                    rollout_id,
                    span.attempt_id,
                )
                continue
            log.append(span)
            log.size += size
            self.span_bytes += size
            stored.append(span)
            alive[rollout_id, span.attempt_id] = entry
        self.span_count += len(stored)
        for (_, attempt_id), entry in alive.items():
            self._heard_from(entry, entry.attempts[attempt_id], now)
        if self.span_bytes > self.budget.eviction:
            self._evict()
        return stored

    def _heard_from(self, entry: Entry, attempt: Attempt, now: float) -> None:
        change = lifecycle.span_arrived(
            entry.rollout,
            attempt,
            is_latest=entry.is_latest(attempt),
            worker=self.worker(attempt.worker_id),
            now=now,
        )
        self.apply(entry, change, now)

    def _evict(self) -> None:
        """Drop the spans of whole rollouts until they fit: finished ones first, oldest first."""
        before, rollouts, spans = self.span_bytes, 0, 0
        for entry in self._by_worth():
            if self.span_bytes <= self.budget.safe:
                break
            log = entry.spans
            assert log is not None
            rollouts += 1
            spans += len(log)
            self.span_bytes -= log.size
            entry.spans = None
            entry.evicted = True
        self.span_count -= spans
        logger.warning(
            "Evicted %d spans of %d rollouts from memory (%d of %d bytes, threshold %d)",
            spans,
            rollouts,
            before - self.span_bytes,
            before,
            self.budget.eviction,
        )

    def _by_worth(self) -> Iterator[Entry]:
        holding = [entry for entry in self.entries.values() if entry.spans]
        heap = [
            (entry.rollout.status not in FINISHED_STATUSES, entry.rollout.start_time, at)
            for at, entry in enumerate(holding)
        ]
        heapq.heapify(heap)
        while heap:
            yield holding[heapq.heappop(heap)[2]]
