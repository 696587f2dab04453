"""A write transaction: the tables, how the lifecycle's changes are written, and what is told."""

from __future__ import annotations

from typing import Any, NamedTuple

from agl_core.lifecycle import Change
from agl_core.types import FINISHED_STATUSES, Attempt, Rollout, Worker
from agl_store_sqlite.tables import Tables

__all__ = ["Told", "Transaction"]


class Told(NamedTuple):
    """A change, for listeners; and whether it finished or reopened a rollout."""

    kind: str
    ids: dict[str, Any]
    finished: bool | None = None


class Transaction(Tables):
    """The tables inside a write transaction, and what it will tell once it is committed."""

    now: float = 0.0

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.told: list[Told] = []
        self.queue_changed = False
        self._counted: dict[str, int] = {}
        self._queue_tail: int | None = None

    def tell(self, kind: str, finished: bool | None = None, **ids: Any) -> None:
        self.told.append(Told(kind, ids, finished))

    def count(self, name: str, change: int) -> None:
        """Add to a counter, when the transaction ends."""
        self._counted[name] = self._counted.get(name, 0) + change

    def position_at_tail(self) -> int:
        """Return the next position of the queue."""
        if self._queue_tail is None:
            (self._queue_tail,) = self.one("SELECT value FROM counters WHERE name = 'queue_tail'")
        assert self._queue_tail is not None
        self._queue_tail += 1
        self.queue_changed = True
        return self._queue_tail

    def write_counters(self) -> None:
        """Write what was counted; once per transaction, before its end."""
        if self._queue_tail is not None:
            self.execute(
                "UPDATE counters SET value = ? WHERE name = 'queue_tail'", (self._queue_tail,)
            )
        for name, change in self._counted.items():
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
