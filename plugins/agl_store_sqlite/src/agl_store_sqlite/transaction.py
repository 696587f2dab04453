"""A write transaction: the tables, how the lifecycle's changes are written, and what is told."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from agl_core.lifecycle import Change
from agl_core.store import EncodedSpan
from agl_core.types import FINISHED_STATUSES, Attempt, Rollout, Worker
from agl_store_sqlite.known import Known
from agl_store_sqlite.records import SPAN_COLUMNS
from agl_store_sqlite.tables import StoredRollout, Tables

__all__ = ["Told", "Transaction"]


_SHORT: Final = 1024
"""Bytes of a worker's stats that are kept in memory."""


class Told(NamedTuple):
    """A change, for listeners; and whether it finished or reopened a rollout."""

    kind: str
    ids: dict[str, Any]
    finished: bool | None = None


class Transaction(Tables):
    """The tables inside a write transaction, and what it will tell once it is committed."""

    now: float = 0.0

    def __init__(self, connection: sqlite3.Connection, known: Known) -> None:
        super().__init__(connection)
        self.known = known
        self.told: list[Told] = []
        self.queue_changed = False
        self.others: list[int] = []
        """Ports of the other processes that have the file open, if there is news for them."""
        self.available = 0
        """How many of those who waited for work may look for it."""
        self._counted: dict[str, int] = {}
        self._queue_tail: int | None = None
        self._drawn: dict[str, int] = {}

    # -- what need not be read again -------------------------------------------------------------

    def standing(self, rollout_id: str) -> StoredRollout:
        found = self.known.standings.get(rollout_id)
        if found is None:
            found = self.known.standings[rollout_id] = super().standing(rollout_id)
        return found

    def find_attempt(self, rollout_id: str, attempt_id: str) -> Attempt | None:
        found = self.known.attempts.get((rollout_id, attempt_id))
        if found is None:
            found = super().find_attempt(rollout_id, attempt_id)
            if found is not None:
                self._remember_attempt(found)
        return found

    def _remember_attempt(self, attempt: Attempt) -> None:
        key = (attempt.rollout_id, attempt.attempt_id)
        if attempt.metadata:
            self.known.attempts.pop(key, None)
        else:
            self.known.attempts[key] = attempt

    def insert_spans(self, spans: Sequence[tuple[int, EncodedSpan]]) -> list[EncodedSpan]:
        """Store spans, each with its rollout's ordinal; return those that were new."""
        last = self.known.last_spans
        for rollout in {pair[0] for pair in spans}:
            if rollout not in last:
                last[rollout] = self.last_span(rollout)
        highest = self.known.sequence_ids
        rows: list[tuple[Any, ...]] = []
        for rollout, span in spans:
            last[rollout] += 1
            rows.append(_span_row(last[rollout], rollout, span))
            drawn = highest.get(span.rollout_id)
            if drawn is not None and drawn < span.sequence_id:
                highest[span.rollout_id] = span.sequence_id
        if len(rows) > 1:
            before = self.connection.total_changes
            self.execute("SAVEPOINT spans")
            self.connection.executemany(_INSERT_SPAN, rows)
            if self.connection.total_changes - before == len(rows):
                self.execute("RELEASE spans")
                return [span for _, span in spans]
            # Some were there already; which ones, only single statements tell.
            self.execute("ROLLBACK TO spans")
            self.execute("RELEASE spans")
        return [
            span
            for row, (_, span) in zip(rows, spans, strict=True)
            if self.execute(_INSERT_SPAN, row).rowcount == 1
        ]

    def insert_rollout(self, rollout: Rollout, queue_position: int | None) -> None:
        super().insert_rollout(rollout, queue_position)
        self.count_rollout(None, rollout.status)

    def save_status(self, rollout: Rollout, **columns: int | None) -> None:
        super().save_status(rollout, **columns)
        self.known.standings.pop(rollout.rollout_id, None)

    def save_payload(self, rollout: Rollout) -> None:
        super().save_payload(rollout)
        self.known.standings.pop(rollout.rollout_id, None)

    def save_attempt(self, attempt: Attempt) -> None:
        super().save_attempt(attempt)
        self._remember_attempt(attempt)

    def delete_attempt(self, attempt: Attempt) -> None:
        super().delete_attempt(attempt)
        self.known.attempts.pop((attempt.rollout_id, attempt.attempt_id), None)

    def find_worker(self, worker_id: str | None) -> Worker | None:
        return self.known.workers.get(worker_id or "") or super().find_worker(worker_id)

    def save_worker(self, worker: Worker) -> int:
        size = super().save_worker(worker)
        if size <= _SHORT:
            self.known.workers[worker.worker_id] = worker
        else:
            self.known.workers.pop(worker.worker_id, None)
        return size

    def draw_sequence_ids(self, rollout_id: str, number: int) -> int:
        """Draw ``number`` ids of a rollout; return the last of them."""
        known = self.known.sequence_ids
        if rollout_id not in known:
            known[rollout_id] = self.last_sequence_id(rollout_id)
        known[rollout_id] += number
        self._drawn[rollout_id] = known[rollout_id]
        return known[rollout_id]

    # -- what is told and counted ----------------------------------------------------------------

    def tell(self, kind: str, finished: bool | None = None, **ids: Any) -> None:
        self.told.append(Told(kind, ids, finished))

    def count(self, name: str, change: int) -> None:
        """Add to a counter, when the transaction ends."""
        self._counted[name] = self._counted.get(name, 0) + change

    def count_rollout(self, was: str | None, is_now: str | None) -> None:
        """Count a rollout whose status changes; None: it was not there, or is no longer."""
        if was is None or is_now is None:
            self.count("rollouts", 1 if was is None else -1)
        if was is not None:
            self.count(f"rollouts.{was}", -1)
        if is_now is not None:
            self.count(f"rollouts.{is_now}", 1)

    def position_at_tail(self) -> int:
        """Return the next position of the queue."""
        if self._queue_tail is None:
            (self._queue_tail,) = self.one("SELECT value FROM counters WHERE name = 'queue_tail'")
        assert self._queue_tail is not None
        self._queue_tail += 1
        self.queue_changed = True
        return self._queue_tail

    def write_counters(self) -> None:
        """Write what was counted and drawn; once per transaction, before its end."""
        if self._drawn:
            self.connection.executemany(
                "INSERT INTO sequence_ids (rollout_id, last) VALUES (?, ?) "
                "ON CONFLICT (rollout_id) DO UPDATE SET last = excluded.last",
                self._drawn.items(),
            )
        if self._queue_tail is not None:
            self.execute(
                "UPDATE counters SET value = ? WHERE name = 'queue_tail'", (self._queue_tail,)
            )
        for name, change in self._counted.items():
            if change:
                self.execute("UPDATE counters SET value = value + ? WHERE name = ?", (change, name))

    def apply(self, rollout: Rollout, change: Change, *, known: Attempt | None = None) -> None:
        """Persist what the lifecycle said.

        Args:
            rollout: The rollout as it was.
            change: What changes.
            known: The attempt as it was; None if the change's attempt is new.
        """
        columns: dict[str, int | None] = {}
        if change.attempt is not None:
            self._put_attempt(change.attempt, known)
            if known is None:
                columns["attempts"] = change.attempt.sequence_id
        if change.queue is not None:
            columns["queue_position"] = (
                self.position_at_tail() if change.queue == "append" else None
            )
        if change.rollout is not None or columns:
            self.save_status(change.rollout or rollout, **columns)
        if change.rollout is not None:
            self.count_rollout(rollout.status, change.rollout.status)
            was, is_now = (r.status in FINISHED_STATUSES for r in (rollout, change.rollout))
            self.tell(
                "rollout",
                finished=is_now if was != is_now else None,
                rollout_id=rollout.rollout_id,
                status=change.rollout.status,
            )
        if change.worker is not None:
            self.put_worker(change.worker)

    def put_worker(self, worker: Worker) -> None:
        self.save_worker(worker)
        self.tell(
            "worker",
            worker_id=worker.worker_id,
            status=worker.status,
            rollout_id=worker.current_rollout_id,
            attempt_id=worker.current_attempt_id,
        )

    def _put_attempt(self, attempt: Attempt, known: Attempt | None) -> None:
        if known is None:
            self.insert_attempt(attempt)
            self.count("attempts", 1)
        elif known.__dict__ != attempt.__dict__:  # of many spans in one batch the first says it all
            self.save_attempt(attempt)
        if known is None or known.status != attempt.status:
            self.tell(
                "attempt",
                rollout_id=attempt.rollout_id,
                attempt_id=attempt.attempt_id,
                worker_id=attempt.worker_id,
                status=attempt.status,
            )


_INSERT_SPAN: Final = (
    f"INSERT OR IGNORE INTO spans (ordinal, rollout, {SPAN_COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _span_row(ordinal: int, rollout: int, span: EncodedSpan) -> tuple[Any, ...]:
    return (
        ordinal,
        rollout,
        span.attempt_id,
        span.sequence_id,
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.start_time,
        span.end_time,
        span.payload,
    )
