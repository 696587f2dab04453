"""One write transaction: changes of single records, counters, and notices for listeners."""

from __future__ import annotations

import logging
import sqlite3
from functools import cache
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from agl_core.types import Attempt, ResourcesUpdate, Rollout, Worker
from agl_store_kit import (
    Notice,
    RolloutState,
    changed_figures,
    notices_of,
    rollout_not_found,
    worker_notice,
)
from agl_store_kit.lifecycle import Change, is_watched
from agl_store_kit.rows import (
    WORKER_FIELDS,
    UnreadableRecordError,
    encode,
    encode_resources,
    rollout_from,
    state_from,
)
from agl_store_sqlite.columns import (
    ATTEMPT_COLUMNS,
    LATEST_ATTEMPT,
    LATEST_RESOURCES,
    NO_PAYLOAD_COLUMNS,
    RESOURCES_COLUMNS,
    ROLLOUT_COLUMNS,
    WORKER_COLUMNS,
)
from agl_store_sqlite.queries import get_worker

__all__ = ["StoredState", "Transaction"]

logger = logging.getLogger(__name__)

_KEEP_REQUESTS_SECONDS: Final = 3600.0
"""How long a call may be repeated under its idempotency key."""


class StoredState(NamedTuple):
    """A rollout's ordinal and the state that a decision is based on."""

    ordinal: int
    state: RolloutState


class Transaction:
    """Belongs to the writer's thread.

    Args:
        connection: The writer's connection, in a transaction.
    """

    now: float = 0.0
    """When the transaction began, in epoch seconds."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.notices: list[Notice] = []
        """The transaction's changes, for listeners."""
        self._counted: dict[str, int] = {}
        self._queue_tail: int | None = None

    def one(self, statement: str, *values: Any) -> Any:
        """Return the first row, or None."""
        return self.execute(statement, values).fetchone()

    # -- rollouts with their attempts and workers --------------------------------------------------

    def state(
        self,
        rollout_id: str,
        attempt_id: str = "latest",
        worker_id: str | None = None,
        *,
        payload: bool = True,
    ) -> StoredState:
        """Read what a decision about a rollout is based on, in one statement.

        Arguments as in :meth:`agl_store_kit.StorageBackend.change`.

        Raises:
            RolloutNotFoundError: There is no such rollout.
        """
        statement = _state_statement(latest=attempt_id == "latest", payload=payload)
        row = self.one(statement, rollout_id, attempt_id, worker_id)
        if row is None:
            raise rollout_not_found(rollout_id)
        return StoredState(row[0], state_from(row[1:]))

    def apply(self, stored: StoredState, change: Change) -> None:
        """Persist a decision, and note it for listeners."""
        ordinal, (rollout, _, known, _) = stored
        columns: dict[str, Any] = {}
        if change.attempt is not None:
            if known is None or known.attempt_id != change.attempt.attempt_id:
                self.insert_attempt(ordinal, change.attempt)
                columns["attempts"] = change.attempt.sequence_id
            elif known.__dict__ != change.attempt.__dict__:
                self._update_attempt(ordinal, change.attempt)
        if change.queue is not None:
            columns["queue_position"] = (
                self.position_at_tail() if change.queue == "append" else None
            )
        columns |= changed_figures(stored.state, change)
        if change.rollout is not None or columns:
            self.update_rollout(ordinal, rollout, change.rollout or rollout, columns)
        if change.worker is not None:
            self._save_worker(change.worker)
        self.notices += notices_of(stored.state, change, self.now)

    def insert_rollout(self, rollout: Rollout, *, queued: bool) -> int | None:
        """Add a rollout, at the tail of the queue or outside it.

        Returns:
            Its ordinal, or None if its id is taken.
        """
        added = self.execute(
            "INSERT INTO rollouts (rollout_id, status, mode, resources_id, start_time, end_time, "
            "input, config, metadata, watched, queue_position) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (rollout_id) DO NOTHING",
            (
                rollout.rollout_id,
                rollout.status,
                rollout.mode,
                rollout.resources_id,
                rollout.start_time,
                rollout.end_time,
                encode("input", rollout.input),
                encode("config", rollout.config),
                encode("metadata", rollout.metadata),
                is_watched(rollout),
                self.position_at_tail() if queued else None,
            ),
        )
        if not added.rowcount:
            return None
        self.count_rollout(None, rollout.status)
        return added.lastrowid

    def update_rollout(
        self, ordinal: int, before: Rollout, after: Rollout, columns: dict[str, Any]
    ) -> None:
        """Write what changed of a rollout, and other columns of its row."""
        columns |= {
            "status": after.status,
            "end_time": after.end_time,
            "watched": is_watched(after),
        }
        for name in ("mode", "resources_id"):
            if getattr(before, name) != getattr(after, name):
                columns[name] = getattr(after, name)
        for name in ("input", "config", "metadata"):
            if getattr(before, name) is not getattr(after, name):
                columns[name] = encode(name, getattr(after, name))
        assignments = ", ".join(f"{name} = ?" for name in columns)
        self.execute(
            f"UPDATE rollouts SET {assignments} WHERE ordinal = ?", (*columns.values(), ordinal)
        )
        if before.status != after.status:
            self.count_rollout(before.status, after.status)

    def insert_attempt(self, ordinal: int, attempt: Attempt) -> None:
        self.execute(
            "INSERT INTO attempts (rollout, rollout_id, attempt_id, sequence_id, start_time, "
            "end_time, status, worker_id, last_heartbeat_time, metadata) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                ordinal,
                attempt.rollout_id,
                attempt.attempt_id,
                attempt.sequence_id,
                attempt.start_time,
                attempt.end_time,
                attempt.status,
                attempt.worker_id,
                attempt.last_heartbeat_time,
                encode("metadata", attempt.metadata),
            ),
        )
        self.count("attempts", 1)

    def _update_attempt(self, ordinal: int, attempt: Attempt) -> None:
        self.execute(
            "UPDATE attempts SET end_time = ?, status = ?, worker_id = ?, last_heartbeat_time = ?, "
            "metadata = ? WHERE rollout = ? AND sequence_id = ?",
            (
                attempt.end_time,
                attempt.status,
                attempt.worker_id,
                attempt.last_heartbeat_time,
                encode("metadata", attempt.metadata),
                ordinal,
                attempt.sequence_id,
            ),
        )

    def delete_attempt(self, ordinal: int, attempt: Attempt) -> None:
        self.execute(
            "DELETE FROM attempts WHERE rollout = ? AND sequence_id = ?",
            (ordinal, attempt.sequence_id),
        )
        self.count("attempts", -1)

    # -- the queue -------------------------------------------------------------------------------

    def queue_head(self, limit: int) -> list[tuple[int, int, Rollout]]:
        """Return the ordinals, the numbers of attempts and the rollouts at the head."""
        heads: list[tuple[int, int, Rollout]] = []
        damaged = True
        while damaged:
            rows = self.execute(
                f"SELECT r.ordinal, r.attempts, {ROLLOUT_COLUMNS} FROM rollouts r "
                "WHERE queue_position NOT NULL ORDER BY queue_position LIMIT ?",
                (limit,),
            ).fetchall()
            heads, damaged = [], False
            for row in rows:
                try:
                    heads.append((row[0], row[1], rollout_from(row[2:])))
                except UnreadableRecordError as error:
                    damaged = True
                    self._set_aside(row[0], row[2], row[8], error)
        return heads

    def _set_aside(self, ordinal: int, rollout_id: str, status: str, error: Exception) -> None:
        """Fail a rollout whose row cannot be read; at the head it would stop the whole queue."""
        logger.error("Rollout %s cannot be read and leaves the queue: %s", rollout_id, error)
        self.execute(
            "UPDATE rollouts SET status = 'failed', end_time = ?, queue_position = NULL, "
            "watched = 0 WHERE ordinal = ?",
            (self.now, ordinal),
        )
        self.count_rollout(status, "failed")
        self.notices.append(Notice("rollout", self.now, rollout_id, status="failed"))

    def position_at_tail(self) -> int:
        """Return the next position of the queue."""
        if self._queue_tail is None:
            (self._queue_tail,) = self.one("SELECT value FROM counters WHERE name = 'queue_tail'")
        assert self._queue_tail is not None
        self._queue_tail += 1
        return self._queue_tail

    def position_at_head(self) -> int:
        """Return a position before all that wait."""
        return self.one(
            "SELECT coalesce(min(queue_position), 0) - 1 FROM rollouts "
            "WHERE queue_position NOT NULL"
        )[0]

    # -- workers and resources -------------------------------------------------------------------

    def find_worker(self, worker_id: str | None) -> Worker | None:
        return get_worker(self.connection, worker_id) if worker_id else None

    def change_worker(self, before: Worker | None, after: Worker) -> None:
        """Insert or replace a worker, and note the change for listeners."""
        self._save_worker(after)
        self.notices += worker_notice(before, after, self.now)

    def _save_worker(self, worker: Worker) -> None:
        values = worker.__dict__ | {
            "heartbeat_stats": encode("heartbeat_stats", worker.heartbeat_stats)
        }
        self.execute(_UPSERT_WORKER, tuple(map(values.__getitem__, WORKER_FIELDS)))

    def save_resources(self, update: ResourcesUpdate, *, becomes_latest: bool) -> None:
        """Insert or replace a snapshot, and note it for listeners."""
        # The latest snapshot has the highest number. Others count downwards from 0.
        touched = (
            "max(0, coalesce(max(touched), 0)) + 1"
            if becomes_latest
            else "min(0, coalesce(min(touched), 0)) - 1"
        )
        self.execute(
            f"INSERT INTO resources ({RESOURCES_COLUMNS}, touched) "
            f"VALUES (?1, ?2, ?3, ?4, ?5, (SELECT {touched} FROM resources)) "
            "ON CONFLICT (resources_id) DO UPDATE SET update_time = ?3, version = ?4, "
            "resources = ?5, touched = excluded.touched",
            (
                update.resources_id,
                update.create_time,
                update.update_time,
                update.version,
                encode_resources(update.resources),
            ),
        )
        self.notices.append(Notice("resources", self.now, resources_id=update.resources_id))

    def latest_resources_id(self) -> str | None:
        row = self.one(f"SELECT resources_id FROM resources {LATEST_RESOURCES}")
        return None if row is None else row[0]

    # -- idempotency keys ------------------------------------------------------------------------

    def remembered(self, key: str | None) -> Any:
        """Return the result of the call of this idempotency key, or None."""
        if key is None:
            return None
        row = self.one("SELECT result FROM requests WHERE key = ?", key)
        return None if row is None else from_json(row[0])

    def remember(self, key: str | None, result: Any) -> None:
        """Keep the result of a call under its idempotency key, in place of an earlier one."""
        if key is not None:
            self.execute(
                "INSERT OR REPLACE INTO requests VALUES (?, ?, ?)", (key, self.now, to_json(result))
            )
            self.forget_requests()

    def forget_requests(self) -> None:
        """Forget old idempotency keys."""
        self.execute("DELETE FROM requests WHERE time < ?", (self.now - _KEEP_REQUESTS_SECONDS,))

    # -- counters --------------------------------------------------------------------------------

    def count(self, name: str, change: int) -> None:
        """Add to a counter when the transaction ends."""
        self._counted[name] = self._counted.get(name, 0) + change

    def count_rollout(self, before: str | None, after: str | None) -> None:
        """Count a status change.

        Args:
            before: The status; None if the rollout did not exist.
            after: The status; None if the rollout was dropped.
        """
        if before is None or after is None:
            self.count("rollouts", 1 if before is None else -1)
        if before is not None:
            self.count(f"rollouts.{before}", -1)
        if after is not None:
            self.count(f"rollouts.{after}", 1)

    def write_counters(self) -> None:
        """Write the counters; the last change of a transaction."""
        if self._queue_tail is not None:
            self.execute(
                "UPDATE counters SET value = ? WHERE name = 'queue_tail'", (self._queue_tail,)
            )
        changes = [(change, name) for name, change in self._counted.items() if change]
        if changes:
            self.connection.executemany(
                "UPDATE counters SET value = value + ? WHERE name = ?", changes
            )


_UPSERT_WORKER: Final = (
    f"INSERT INTO workers ({', '.join(WORKER_FIELDS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (worker_id) DO UPDATE SET "
    + ", ".join(f"{field} = excluded.{field}" for field in WORKER_FIELDS[1:])
)


@cache
def _state_statement(*, latest: bool, payload: bool) -> str:
    attempt = (
        LATEST_ATTEMPT if latest else "attempts a ON a.rollout = r.ordinal AND a.attempt_id = ?2"
    )
    return (
        f"SELECT r.ordinal, r.attempts, {ROLLOUT_COLUMNS if payload else NO_PAYLOAD_COLUMNS}, "
        f"{ATTEMPT_COLUMNS}, {WORKER_COLUMNS} FROM rollouts r LEFT JOIN {attempt} "
        "LEFT JOIN workers w ON w.worker_id = coalesce(?3, a.worker_id) WHERE r.rollout_id = ?1"
    )
