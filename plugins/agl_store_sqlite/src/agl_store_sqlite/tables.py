"""Every statement that reads or writes single records.

A :class:`Tables` works on one connection; the writer uses it inside a transaction, readers on
connections of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from agl_core import lifecycle
from agl_core.errors import AttemptNotFoundError, RolloutNotFoundError
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    ResourcesUpdate,
    Rollout,
    Worker,
    becomes_latest,
)
from agl_store_sqlite.records import (
    ATTEMPT_COLUMNS,
    ATTEMPTED,
    ATTEMPTED_COLUMNS,
    ROLLOUT_COLUMNS,
    STANDING_COLUMNS,
    WORKER_COLUMNS,
    WORKER_FIELDS,
    attempt_from,
    attempted_from,
    encode,
    named_resources,
    resources_from,
    rollout_from,
    worker_from,
)
from agl_store_sqlite.schema import SPANS_PER_ROLLOUT

__all__ = ["ORDINAL", "StoredRollout", "Tables"]

ORDINAL: Final = "(SELECT ordinal FROM rollouts WHERE rollout_id = ?)"


class StoredRollout(NamedTuple):
    """A rollout, and what only the store knows of it."""

    rollout: Rollout
    ordinal: int
    attempts: int


class Tables:
    """Single records on one connection. Not thread-safe, like its connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute

    def one(self, statement: str, *values: Any) -> Any:
        """Return the first row, or None."""
        return self.execute(statement, values).fetchone()

    # -- rollouts --------------------------------------------------------------------------------

    def find_rollout(self, rollout_id: str) -> Rollout | None:
        row = self.one(
            f"SELECT {ROLLOUT_COLUMNS} FROM rollouts r WHERE r.rollout_id = ?", rollout_id
        )
        return None if row is None else rollout_from(row)

    def find_attempted(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        """Return a rollout with its latest attempt, if it has one."""
        row = self.one(
            f"SELECT {ATTEMPTED_COLUMNS} FROM {ATTEMPTED} WHERE r.rollout_id = ?", rollout_id
        )
        return None if row is None else attempted_from(row)

    def rollout(self, rollout_id: str) -> Rollout:
        """Return a rollout.

        Raises:
            RolloutNotFoundError: There is none of this id.
        """
        found = self.find_rollout(rollout_id)
        if found is None:
            raise RolloutNotFoundError(f"Rollout {rollout_id} not found")
        return found

    def stored_rollout(self, rollout_id: str) -> StoredRollout:
        """Return a rollout with what only the store knows of it.

        Raises:
            RolloutNotFoundError: There is none of this id.
        """
        return self._stored(ROLLOUT_COLUMNS, rollout_id)

    def standing(self, rollout_id: str) -> StoredRollout:
        """Return a rollout as the lifecycle needs it: its input and metadata are left out.

        Raises:
            RolloutNotFoundError: There is none of this id.
        """
        return self._stored(STANDING_COLUMNS, rollout_id)

    def _stored(self, columns: str, rollout_id: str) -> StoredRollout:
        row = self.one(
            f"SELECT r.ordinal, r.attempts, {columns} FROM rollouts r WHERE r.rollout_id = ?",
            rollout_id,
        )
        if row is None:
            raise RolloutNotFoundError(f"Rollout {rollout_id} not found")
        return _stored_from(row)

    def status_of(self, rollout_id: str) -> str | None:
        row = self.one("SELECT status FROM rollouts WHERE rollout_id = ?", rollout_id)
        return None if row is None else row[0]

    def insert_rollout(self, rollout: Rollout, queue_position: int | None) -> None:
        self.execute(
            "INSERT INTO rollouts (rollout_id, status, mode, resources_id, start_time, end_time, "
            "input, config, metadata, watched, queue_position) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
                lifecycle.is_watched(rollout),
                queue_position,
            ),
        )

    def save_status(self, rollout: Rollout, **columns: int | None) -> None:
        """Write what the lifecycle changes by itself.

        Args:
            rollout: The rollout as it is now.
            **columns: Other columns of its row that change with it.
        """
        more = "".join(f", {name} = ?" for name in columns)
        self.execute(
            f"UPDATE rollouts SET status = ?, end_time = ?, watched = ?{more} WHERE rollout_id = ?",
            (
                rollout.status,
                rollout.end_time,
                lifecycle.is_watched(rollout),
                *columns.values(),
                rollout.rollout_id,
            ),
        )

    def save_payload(self, rollout: Rollout) -> None:
        """Write what only :meth:`LightningStore.update_rollout` changes."""
        self.execute(
            "UPDATE rollouts SET mode = ?, resources_id = ?, input = ?, config = ?, metadata = ? "
            "WHERE rollout_id = ?",
            (
                rollout.mode,
                rollout.resources_id,
                encode("input", rollout.input),
                encode("config", rollout.config),
                encode("metadata", rollout.metadata),
                rollout.rollout_id,
            ),
        )

    # -- the queue -------------------------------------------------------------------------------

    def position_at_head(self) -> int:
        """Return the position before all that wait."""
        return self.one(
            "SELECT coalesce(min(queue_position), 0) - 1 FROM rollouts "
            "WHERE queue_position NOT NULL"
        )[0]

    def queue_head(self, limit: int) -> list[StoredRollout]:
        rows = self.execute(
            f"SELECT r.ordinal, r.attempts, {ROLLOUT_COLUMNS} FROM rollouts r "
            "WHERE queue_position NOT NULL ORDER BY queue_position LIMIT ?",
            (limit,),
        )
        return [_stored_from(row) for row in rows.fetchall()]

    def queue_length(self, at_most: int) -> int:
        (length,) = self.one(
            "SELECT count(*) FROM (SELECT 1 FROM rollouts WHERE queue_position NOT NULL LIMIT ?)",
            at_most,
        )
        return length

    # -- attempts --------------------------------------------------------------------------------

    def find_attempt(self, rollout_id: str, attempt_id: str) -> Attempt | None:
        """Return an attempt by id, or the one with the highest ordinal for ``"latest"``."""
        if attempt_id == "latest":
            row = self.one(
                f"SELECT {ATTEMPT_COLUMNS} FROM attempts a WHERE a.rollout = {ORDINAL} "
                "ORDER BY a.sequence_id DESC LIMIT 1",
                rollout_id,
            )
        else:
            row = self.one(
                f"SELECT {ATTEMPT_COLUMNS} FROM attempts a "
                f"WHERE a.rollout = {ORDINAL} AND a.attempt_id = ?",
                rollout_id,
                attempt_id,
            )
        return None if row is None else attempt_from(row)

    def attempt(self, rollout_id: str, attempt_id: str) -> Attempt:
        """Return an attempt.

        Raises:
            AttemptNotFoundError: There is none of this id.
        """
        found = self.find_attempt(rollout_id, attempt_id)
        if found is None:
            raise AttemptNotFoundError(f"Attempt {attempt_id} not found in rollout {rollout_id}")
        return found

    def insert_attempt(self, attempt: Attempt) -> None:
        self.execute(
            "INSERT INTO attempts (rollout, rollout_id, attempt_id, sequence_id, start_time, "
            "end_time, status, worker_id, last_heartbeat_time, metadata) VALUES "
            "((SELECT ordinal FROM rollouts WHERE rollout_id = ?1), ?1, ?, ?, ?, ?, ?, ?, ?, ?)",
            self._attempt_values(attempt),
        )

    def save_attempt(self, attempt: Attempt) -> None:
        self.execute(
            "UPDATE attempts SET end_time = ?, status = ?, worker_id = ?, last_heartbeat_time = ?, "
            f"metadata = ? WHERE rollout = {ORDINAL} AND sequence_id = ?",
            (
                attempt.end_time,
                attempt.status,
                attempt.worker_id,
                attempt.last_heartbeat_time,
                encode("metadata", attempt.metadata),
                attempt.rollout_id,
                attempt.sequence_id,
            ),
        )

    def delete_attempt(self, attempt: Attempt) -> None:
        self.execute(
            f"DELETE FROM attempts WHERE rollout = {ORDINAL} AND sequence_id = ?",
            (attempt.rollout_id, attempt.sequence_id),
        )

    @staticmethod
    def _attempt_values(attempt: Attempt) -> tuple[Any, ...]:
        return (
            attempt.rollout_id,
            attempt.attempt_id,
            attempt.sequence_id,
            attempt.start_time,
            attempt.end_time,
            attempt.status,
            attempt.worker_id,
            attempt.last_heartbeat_time,
            encode("metadata", attempt.metadata),
        )

    # -- workers ---------------------------------------------------------------------------------

    def find_worker(self, worker_id: str | None) -> Worker | None:
        if worker_id is None:
            return None
        row = self.one(f"SELECT {WORKER_COLUMNS} FROM workers WHERE worker_id = ?", worker_id)
        return None if row is None else worker_from(row)

    def save_worker(self, worker: Worker) -> int:
        """Insert or replace a worker; return the size of its stats in bytes."""
        stats = encode("heartbeat_stats", worker.heartbeat_stats)
        values = {**worker.__dict__, "heartbeat_stats": stats}
        self.execute(_UPSERT_WORKER, tuple(map(values.__getitem__, WORKER_FIELDS)))
        return len(stats)

    # -- resources -------------------------------------------------------------------------------

    def find_resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        """Return a snapshot by id, or the latest for None."""
        which = (
            "WHERE touched > 0 ORDER BY touched DESC LIMIT 1"
            if resources_id is None
            else "WHERE resources_id = ?"
        )
        row = self.execute(
            "SELECT resources_id, create_time, update_time, version, resources FROM resources "
            + which,
            () if resources_id is None else (resources_id,),
        ).fetchone()
        return None if row is None else resources_from(row)

    def latest_resources_id(self) -> str | None:
        row = self.one(
            "SELECT resources_id FROM resources WHERE touched > 0 ORDER BY touched DESC LIMIT 1"
        )
        return None if row is None else row[0]

    def save_resources(self, update: ResourcesUpdate) -> None:
        payload = named_resources.dump_json(update.resources)
        # What never becomes the latest counts downwards.
        touched = (
            "max(0, coalesce(max(touched), 0)) + 1"
            if becomes_latest(update.resources)
            else "min(0, coalesce(min(touched), 0)) - 1"
        )
        self.execute(
            "INSERT INTO resources (resources_id, create_time, update_time, version, resources, "
            "touched) VALUES (?1, ?2, ?3, ?4, ?5, "
            f"(SELECT {touched} FROM resources)) "
            "ON CONFLICT (resources_id) DO UPDATE SET update_time = ?3, version = ?4, "
            "resources = ?5, touched = excluded.touched",
            (
                update.resources_id,
                update.create_time,
                update.update_time,
                update.version,
                payload,
            ),
        )

    # -- spans -----------------------------------------------------------------------------------

    def rollout_ordinal(self, rollout_id: str) -> int | None:
        row = self.one("SELECT ordinal FROM rollouts WHERE rollout_id = ?", rollout_id)
        return None if row is None else row[0]

    def spans_at_most(self, rollout_id: str) -> int:
        """Return the number of a rollout's spans, or a little more; reads two rows."""
        rollout = self.rollout_ordinal(rollout_id)
        return 0 if rollout is None else self.last_span(rollout) - rollout * SPANS_PER_ROLLOUT

    def last_span(self, rollout: int) -> int:
        """Return the ordinal of the rollout's newest span, or the one before its first."""
        first = rollout * SPANS_PER_ROLLOUT
        (last,) = self.one(
            "SELECT max(ordinal) FROM spans WHERE ordinal > ? AND ordinal < ?",
            first,
            first + SPANS_PER_ROLLOUT,
        )
        return first if last is None else last

    def last_sequence_id(self, rollout_id: str) -> int:
        """Return the highest sequence id that was drawn for a rollout, or that a span of it has."""
        return self.one(
            "SELECT max(0, "
            "coalesce((SELECT last FROM sequence_ids WHERE rollout_id = ?1), 0), "
            "coalesce((SELECT max(sequence_id) FROM spans WHERE rollout = "
            "(SELECT ordinal FROM rollouts WHERE rollout_id = ?1)), 0))",
            rollout_id,
        )[0]

    # -- counters --------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        return dict(self.execute("SELECT name, value FROM counters").fetchall())

    def count_rollouts(self, statuses: Collection[str] | None) -> int:
        """Return how many rollouts have one of these statuses; None: how many there are."""
        counters = self.counters()
        if statuses is None:
            return counters["rollouts"]
        return sum(counters.get(f"rollouts.{status}", 0) for status in set(statuses))

    # -- requests --------------------------------------------------------------------------------

    def remembered(self, key: str) -> Any:
        """Return what the creating call of this idempotency key did, or None."""
        row = self.one("SELECT result FROM requests WHERE key = ?", key)
        return None if row is None else from_json(row[0])

    def remember(self, key: str, result: Any, now: float) -> None:
        self.execute("INSERT INTO requests VALUES (?, ?, ?)", (key, now, to_json(result)))

    def forget_requests(self, before: float) -> None:
        self.execute("DELETE FROM requests WHERE time < ?", (before,))


def _stored_from(row: Any) -> StoredRollout:
    ordinal, attempts, *columns = row
    return StoredRollout(rollout_from(columns), ordinal, attempts)


_UPSERT_WORKER: Final = (
    f"INSERT INTO workers ({WORKER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (worker_id) DO UPDATE SET "
    + ", ".join(f"{field} = excluded.{field}" for field in WORKER_FIELDS[1:])
)
