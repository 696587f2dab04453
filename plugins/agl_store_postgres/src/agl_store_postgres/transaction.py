"""One write transaction: reads, then decisions, then all writes with the COMMIT in one round trip.

Locks are taken in one order, so that transactions do not wait for each other in a circle: rollouts
by ordinal, then workers, then sequence ids by rollout.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import AsyncConnection
from pydantic_core import from_json, to_json

from agl_core.types import Attempt, ResourcesUpdate, Rollout, Worker
from agl_store_kit import (
    Notice,
    RolloutRecord,
    RolloutState,
    changed_figures,
    notices_of,
    rollout_not_found,
    rollout_notice,
    worker_notice,
)
from agl_store_kit.lifecycle import Change, is_watched
from agl_store_kit.rows import (
    ATTEMPT_FIELDS,
    RESOURCES_FIELDS,
    ROLLOUT_FIELDS,
    WORKER_FIELDS,
    columns,
    encode,
    encode_resources,
    state_from,
)
from agl_store_postgres.columns import NO_PAYLOAD_COLUMNS

__all__ = ["LATEST_ATTEMPT", "Statement", "StoredState", "Transaction", "pipelined"]

Statement = tuple[str, Sequence[Any]]
"""A statement and its values."""

LATEST_ATTEMPT: Final = "@attempts a ON a.rollout = r.ordinal AND a.sequence_id = r.attempts"
KEEP_REQUESTS_SECONDS: Final = 3600.0
"""How long a call may be repeated under its idempotency key."""
_DATABASE_TIME: Final = "extract(epoch FROM clock_timestamp())::double precision"
"""Epoch seconds by the one clock that all machines share."""


class StoredState(NamedTuple):
    """A rollout's ordinal and the state that a decision is based on."""

    ordinal: int
    state: RolloutState


class Transaction:
    """Reads at once; collects writes until :meth:`commit`.

    Args:
        connection: In autocommit mode, not in a transaction.
        qualify: Puts the schema into a statement.
    """

    def __init__(self, connection: AsyncConnection[Any], qualify: Callable[[str], bytes]) -> None:
        self._connection = connection
        self._qualify = qualify
        self._writes: list[Statement] = []
        self.id = ""
        """The server's id of the transaction; set by the first read."""
        self.is_committing = False
        """Whether COMMIT may have been sent."""
        self.now = time.time()
        self.notices: list[Notice] = []
        """The transaction's changes, for listeners."""
        self.partitions: set[str] = set()
        """Partitions of spans that the transaction writes; they may be missing."""

    async def read(self, *statements: Statement) -> list[list[tuple[Any, ...]]]:
        """Run statements in one round trip; return the rows of each."""
        async with pipelined(self._connection):
            first = None
            if not self.id:
                await self._connection.execute(b"BEGIN")
                first = await self._connection.execute(b"SELECT pg_current_xact_id()::text")
            cursors = [
                await self._connection.execute(self._qualify(statement), values, binary=True)
                for statement, values in statements
            ]
            if first is not None:
                ((self.id,),) = await first.fetchall()
            return [await cursor.fetchall() for cursor in cursors]

    def write(self, statement: str, *values: Any) -> None:
        """Run a statement before the commit."""
        self._writes.append((statement, values))

    async def copy(self, target: str, types: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add rows with COPY, the fastest way for many of them.

        Args:
            target: The table with the columns in parentheses.
            types: Type of each column.
            rows: The values.
        """
        statement = self._qualify(f"COPY {target} FROM STDIN (FORMAT BINARY)")
        async with self._connection.cursor().copy(statement) as copy:
            copy.set_types(types)
            for row in rows:
                await copy.write_row(row)

    def name_of(self, table: str) -> str:
        """Return the qualified name of a table."""
        return self._qualify(table).decode()

    async def flush(self) -> None:
        """Run the collected writes now, so that reads see them. The transaction has begun."""
        async with pipelined(self._connection):
            await self._run_writes()

    async def commit(self) -> None:
        """Run the collected writes and commit, in one round trip."""
        if self.id:
            async with pipelined(self._connection):
                await self._run_writes()
                self.is_committing = True
                await self._connection.execute(b"COMMIT")

    async def _run_writes(self) -> None:
        writes, self._writes = self._writes, []
        for statement, values in writes:
            await self._connection.execute(self._qualify(statement), values)

    # -- rollouts with their attempts and workers --------------------------------------------------

    async def state(
        self,
        rollout_id: str,
        attempt_id: str = "latest",
        worker_id: str | None = None,
        *,
        payload: bool = True,
    ) -> StoredState:
        """Lock and read what a decision about a rollout is based on.

        Arguments as in :meth:`agl_store_kit.StorageBackend.change`.

        Raises:
            RolloutNotFoundError: There is no such rollout.
        """
        latest = attempt_id == "latest"
        # A statement sees what was committed before it began. So the lock is a statement of its
        # own: what the next ones read was written before the lock was granted.
        _, _, rows = await self.read(
            ("SELECT 1 FROM @rollouts WHERE rollout_id = %s FOR UPDATE", (rollout_id,)),
            _lock_worker(rollout_id, attempt_id, worker_id),
            (
                _state_statement(latest=latest, payload=payload),
                (worker_id, rollout_id) if latest else (attempt_id, worker_id, rollout_id),
            ),
        )
        if not rows:
            raise rollout_not_found(rollout_id)
        return stored_state(rows[0])

    def apply(
        self, stored: StoredState, change: Change, *, spans: int = 0, span_bytes: int = 0
    ) -> RolloutRecord:
        """Write a decision, and note it for listeners.

        Args:
            stored: The state that was decided upon.
            change: The decision.
            spans: How many spans the attempt got.
            span_bytes: Their size.

        Returns:
            The rollout and the attempt after the change.
        """
        ordinal, (rollout, _, known, _) = stored
        values: dict[str, Any] = {}
        attempt = change.attempt
        if attempt is not None and (known is None or known.attempt_id != attempt.attempt_id):
            self.insert_attempt(ordinal, attempt)
            values["attempts"] = attempt.sequence_id
        elif attempt is not None and known is not None:
            if spans or known.__dict__ != attempt.__dict__:
                self._update_attempt(ordinal, attempt, spans, span_bytes)
        elif spans and known is not None:
            self._update_attempt(ordinal, known, spans, span_bytes)
        if change.queue == "remove":
            values["queue_position"] = None
        values |= changed_figures(stored.state, change)
        if change.rollout is not None or values or change.queue is not None:
            self.update_rollout(
                ordinal,
                rollout,
                change.rollout or rollout,
                values,
                append=change.queue == "append",
            )
        if change.worker is not None:
            self._save_worker(change.worker)
        self.notices += notices_of(stored.state, change, self.now)
        return change.rollout or rollout, attempt or known

    def update_rollout(
        self,
        ordinal: int,
        before: Rollout,
        after: Rollout,
        values: dict[str, Any],
        *,
        append: bool = False,
    ) -> None:
        """Write what changed of a rollout, and other columns of its row.

        Args:
            ordinal: The rollout's ordinal.
            before: The rollout as stored.
            after: The rollout to store.
            values: Other columns.
            append: Put it at the tail of the queue.
        """
        values |= {"status": after.status, "end_time": after.end_time, "watched": is_watched(after)}
        for name in ("mode", "resources_id"):
            if getattr(before, name) != getattr(after, name):
                values[name] = getattr(after, name)
        for name in ("input", "config", "metadata"):
            if getattr(before, name) is not getattr(after, name):
                values[name] = encode(name, getattr(after, name))
        assignments = [f"{name} = %s" for name in values]
        if append:
            assignments.append("queue_position = nextval('@queue_tail')")
        self.write(
            f"UPDATE @rollouts SET {', '.join(assignments)} WHERE ordinal = %s",
            *(*values.values(), ordinal),
        )

    def insert_attempt(self, ordinal: int, attempt: Attempt) -> None:
        self.write(
            f"INSERT INTO @attempts (rollout, {columns(ATTEMPT_FIELDS)}) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            ordinal,
            *(getattr(attempt, name) for name in ATTEMPT_FIELDS[:-1]),
            encode("metadata", attempt.metadata),
        )

    def _update_attempt(self, ordinal: int, attempt: Attempt, spans: int, span_bytes: int) -> None:
        self.write(
            "UPDATE @attempts SET end_time = %s, status = %s, worker_id = %s, "
            "last_heartbeat_time = %s, metadata = %s, spans = spans + %s, "
            "span_bytes = span_bytes + %s WHERE rollout = %s AND sequence_id = %s",
            attempt.end_time,
            attempt.status,
            attempt.worker_id,
            attempt.last_heartbeat_time,
            encode("metadata", attempt.metadata),
            *(spans, span_bytes, ordinal, attempt.sequence_id),
        )

    async def insert_rollouts(self, rollouts: Sequence[Rollout], *, queued: bool) -> list[int]:
        """Add rollouts, at the tail of the queue or outside it; return their ordinals.

        Raises:
            psycopg.errors.UniqueViolation: An id is taken.
        """
        numbers = "SELECT nextval('@queue_tail') FROM generate_series(1, %s)"
        (positions,) = await self.read((numbers, (len(rollouts) if queued else 0,)))
        await self.copy(
            f"@rollouts ({columns(ROLLOUT_FIELDS)}, watched, queue_position)",
            _ROLLOUT_TYPES,
            (
                (*rollout_values(rollout), positions[place][0] if queued else None)
                for place, rollout in enumerate(rollouts)
            ),
        )
        ids = [rollout.rollout_id for rollout in rollouts]
        (found,) = await self.read(
            ("SELECT rollout_id, ordinal FROM @rollouts WHERE rollout_id = ANY(%s)", (ids,))
        )
        ordinals = dict(found)
        if not queued:
            return [ordinals[name] for name in ids]
        self.notices += [rollout_notice(rollout, self.now) for rollout in rollouts]
        return [ordinals[name] for name in ids]

    # -- workers and resources -------------------------------------------------------------------

    def change_worker(self, before: Worker | None, after: Worker) -> None:
        """Insert or replace a worker, and note the change for listeners."""
        self._save_worker(after)
        self.notices += worker_notice(before, after, self.now)

    def _save_worker(self, worker: Worker) -> None:
        values = worker.__dict__ | {
            "heartbeat_stats": encode("heartbeat_stats", worker.heartbeat_stats)
        }
        self.write(_UPSERT_WORKER, *map(values.__getitem__, WORKER_FIELDS))

    def save_resources(self, update: ResourcesUpdate, *, becomes_latest: bool) -> None:
        """Insert or replace a snapshot, and note it for listeners."""
        # The latest snapshot has the highest number. Others count downwards from 0.
        touched = (
            "greatest(0, max(touched)) + 1" if becomes_latest else "least(0, min(touched)) - 1"
        )
        self.write(
            f"INSERT INTO @resources AS r ({columns(RESOURCES_FIELDS)}, touched) "
            f"VALUES (%s, %s, %s, %s, %s, (SELECT {touched} FROM @resources)) "
            "ON CONFLICT (resources_id) DO UPDATE SET update_time = excluded.update_time, "
            "version = excluded.version, resources = excluded.resources, "
            "touched = excluded.touched",
            *(update.resources_id, update.create_time, update.update_time, update.version),
            encode_resources(update.resources),
        )
        self.notices.append(Notice("resources", self.now, resources_id=update.resources_id))

    # -- idempotency keys ------------------------------------------------------------------------

    async def remembered(self, key: str | None) -> Any:
        """Return the result of the call of this idempotency key, or None."""
        if key is None:
            return None
        _, rows = await self.read(
            lock(key), ("SELECT result FROM @requests WHERE key = %s", (key,))
        )
        return from_json(rows[0][0]) if rows else None

    def remember(self, key: str | None, result: Any) -> None:
        """Keep the result of a call under its idempotency key, in place of an earlier one."""
        if key is not None:
            self.write(
                f"INSERT INTO @requests VALUES (%s, {_DATABASE_TIME}, %s) "
                "ON CONFLICT (key) DO UPDATE SET time = excluded.time, result = excluded.result",
                *(key, to_json(result)),
            )

    def forget_requests(self) -> None:
        """Forget old idempotency keys."""
        self.write(
            f"DELETE FROM @requests WHERE time < {_DATABASE_TIME} - %s", KEEP_REQUESTS_SECONDS
        )


# -- helpers ---------------------------------------------------------------------------------------


@asynccontextmanager
async def pipelined(connection: AsyncConnection[Any]) -> AsyncGenerator[None]:
    """Send the statements of a block together; an error is that of the first that failed."""
    failure: psycopg.Error | None = None
    try:
        async with connection.pipeline():
            try:
                yield
            except psycopg.Error as error:
                failure = error  # psycopg would log the end of the pipeline as a second error
    except psycopg.Error:
        if failure is None:
            raise
    if failure is not None:
        raise failure


def lock(name: str) -> Statement:
    """Return the statement that locks a name until the transaction ends.

    An advisory lock, because a row that does not exist yet cannot be locked.
    """
    return "SELECT pg_advisory_xact_lock(hashtextextended('@' || %s::text, 0))", (name,)


def find_worker(worker_id: str | None) -> Statement:
    """Return the statement that reads a worker."""
    return f"SELECT {columns(WORKER_FIELDS)} FROM @workers WHERE worker_id = %s", (worker_id,)


def rollout_values(rollout: Rollout) -> tuple[Any, ...]:
    """Return the values of :data:`ROLLOUT_FIELDS` and ``watched``."""
    return (
        rollout.rollout_id,
        encode("input", rollout.input),
        rollout.start_time,
        rollout.end_time,
        rollout.mode,
        rollout.resources_id,
        rollout.status,
        encode("config", rollout.config),
        encode("metadata", rollout.metadata),
        is_watched(rollout),
    )


_ROLLOUT_TYPES: Final = (
    *("text", "bytea", "float8", "float8", "text", "text", "text", "bytea", "bytea"),
    *("bool", "int8"),
)

_UPSERT_WORKER: Final = (
    f"INSERT INTO @workers ({columns(WORKER_FIELDS)}) "
    f"VALUES ({', '.join(['%s'] * len(WORKER_FIELDS))}) ON CONFLICT (worker_id) DO UPDATE SET "
    + ", ".join(f"{field} = excluded.{field}" for field in WORKER_FIELDS[1:])
)


def _lock_worker(rollout_id: str, attempt_id: str, worker_id: str | None) -> Statement:
    if worker_id is not None:
        return lock(worker_id)
    name = "hashtextextended('@' || a.worker_id, 0)"
    rollout = "r.rollout_id = %s AND a.worker_id IS NOT NULL"
    if attempt_id == "latest":
        return (
            (
                f"SELECT pg_advisory_xact_lock({name}) FROM @rollouts r JOIN {LATEST_ATTEMPT} "
                f"WHERE {rollout}"
            ),
            (rollout_id,),
        )
    return (
        (
            f"SELECT pg_advisory_xact_lock({name}) FROM @rollouts r JOIN @attempts a "
            f"ON a.rollout = r.ordinal AND a.attempt_id = %s WHERE {rollout}"
        ),
        (attempt_id, rollout_id),
    )


def state_columns(*, payload: bool) -> str:
    """Return the columns that :func:`stored_state` reads."""
    rollout = columns(ROLLOUT_FIELDS, "r.") if payload else NO_PAYLOAD_COLUMNS
    return (
        f"r.ordinal, r.attempts, {rollout}, {columns(ATTEMPT_FIELDS, 'a.')}, "
        f"{columns(WORKER_FIELDS, 'w.')}"
    )


def stored_state(row: Sequence[Any]) -> StoredState:
    """Build a state from a row of :func:`state_columns`."""
    return StoredState(row[0], state_from(row[1:]))


@cache
def _state_statement(*, latest: bool, payload: bool) -> str:
    attempt = (
        LATEST_ATTEMPT if latest else "@attempts a ON a.rollout = r.ordinal AND a.attempt_id = %s"
    )
    return (
        f"SELECT {state_columns(payload=payload)} FROM @rollouts r LEFT JOIN {attempt} "
        "LEFT JOIN @workers w ON w.worker_id = coalesce(%s::text, a.worker_id) "
        "WHERE r.rollout_id = %s"
    )
