"""The PostgreSQL backend: each changing call is one transaction."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from psycopg import errors

from agl_core.store import (
    EncodedSpan,
    LightningStoreCapabilities,
    LightningStoreStatistics,
)
from agl_core.types import Attempt, ResourcesUpdate, Rollout, RolloutStatus, Worker
from agl_store_kit import (
    AttemptQuery,
    ClaimRequest,
    Decide,
    DecideResources,
    DecideWorker,
    Record,
    ResourcesQuery,
    RolloutQuery,
    RolloutRecord,
    SharedClock,
    SpanQuery,
    StorageBackend,
    WorkerQuery,
)
from agl_store_kit.lifecycle import Change
from agl_store_kit.rows import RESOURCES_FIELDS, columns, resources_from, worker_from
from agl_store_postgres import maintenance
from agl_store_postgres.claims import claim_heads, give_back
from agl_store_postgres.config import PostgresConfig
from agl_store_postgres.inserts import insert_queued, insert_started
from agl_store_postgres.pool import address_of
from agl_store_postgres.queries import Queries
from agl_store_postgres.session import Session, Work
from agl_store_postgres.spans import append_spans, draw_sequence_ids
from agl_store_postgres.transaction import Transaction, find_worker, lock

__all__ = ["PostgresBackend"]

T = TypeVar("T")
_NOTHING: Final = Change()
_DROPPED_AT_ONCE: Final = 500
"""Rollouts dropped per transaction, so that their locks are held for a short time."""


class PostgresBackend(StorageBackend):
    """Keeps everything in one schema of a database. Thread-safe; connects again after a fork.

    Args:
        config: The store's configuration.

    Raises:
        StoreDataError: The connection string is wrong.
    """

    shares_records = False

    def __init__(self, config: PostgresConfig) -> None:
        self.address = address_of(config.uri)
        address_of(config.listen_uri or config.uri)  # refuses a wrong one
        self._config = config
        self._current: Session | None = None
        self._inherited: list[Session] = []
        self.clock = SharedClock(self._read_clock)

    async def _read_clock(self) -> float:
        statement = "SELECT extract(epoch FROM clock_timestamp())::float8"
        ((now,),) = await self._call(lambda session: session.pool.rows(statement))
        return now

    @property
    def session(self) -> Session:
        """The session of this process."""
        session = self._current
        if session is None or session.pid != os.getpid():
            if session is not None:
                # After a fork the child has neither the parent's thread nor the right to its
                # connections. The garbage collector must not touch them either.
                self._inherited.append(session)
            session = self._current = Session(self._config, lambda: self._listener)
        return session

    async def _call(self, work: Work[T]) -> T:
        return await self.session.call(work)

    async def _transact(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self.session.call(lambda session: _transact(session, work))

    # -- about the store -------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "durable": True}

    async def statistics(self) -> LightningStoreStatistics:
        return await self._call(lambda session: Queries(session.pool).statistics())

    async def server_settings(self) -> dict[str, str]:
        """Return the server's version and the settings that durability depends on."""
        rows = await self._call(
            lambda session: session.pool.rows(
                "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)",
                ["server_version", "fsync", "full_page_writes", "synchronous_commit"],
            )
        )
        return dict(rows)

    @asynccontextmanager
    async def remote_changes(self) -> AsyncGenerator[None]:
        await self._call(lambda session: session.feed.ready())
        yield

    async def close(self) -> None:
        session = self._current
        if session is None:
            session = self._current = Session(self._config, lambda: None)
        if session.pid == os.getpid():
            await session.close()

    # -- creating and claiming -------------------------------------------------------------------

    async def insert_rollouts(
        self,
        rollouts: Sequence[Rollout],
        *,
        begin: Decide | None = None,
        worker_id: str | None = None,
    ) -> Sequence[RolloutRecord] | None:
        async def insert(tx: Transaction) -> list[RolloutRecord]:
            if begin is None:
                return await insert_queued(tx, rollouts)
            return await insert_started(tx, rollouts, begin, worker_id)

        async def unless_taken(session: Session) -> list[RolloutRecord] | None:
            try:
                return await _transact(session, insert)
            except errors.UniqueViolation:
                return None

        return await self._call(unless_taken)

    async def claim(self, request: ClaimRequest) -> Sequence[tuple[Rollout, Attempt]]:
        async def claim(session: Session) -> list[tuple[Rollout, Attempt]]:
            wait = False
            while True:
                claimed = await _transact(session, partial(claim_heads, request=request, wait=wait))
                if claimed is not None and (claimed or not wait):
                    return claimed
                # All that is queued is locked. Usually other claims take it; but a rollout may
                # also be updated and stay in the queue, and an empty reply would be wrong then.
                wait = not wait

        return await self.session.call(
            claim,
            undo=lambda session, claimed: _transact(session, lambda tx: give_back(tx, claimed)),
        )

    # -- changing --------------------------------------------------------------------------------

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
        async def change(tx: Transaction) -> RolloutRecord:
            is_repeated = await tx.remembered(key)
            stored = await tx.state(rollout_id, attempt_id, worker_id, payload=payload)
            if is_repeated:
                return tx.apply(stored, _NOTHING)
            tx.remember(key, True)
            return tx.apply(stored, decide(stored.state) or _NOTHING)

        return await self._transact(change)

    async def append_spans(
        self, spans: Sequence[EncodedSpan], arrived: Decide
    ) -> Sequence[EncodedSpan]:
        async def append(session: Session) -> list[EncodedSpan]:
            try:
                return await _transact(
                    session, lambda tx: append_spans(tx, spans, arrived, look=False)
                )
            except errors.UniqueViolation:
                return await _transact(
                    session, lambda tx: append_spans(tx, spans, arrived, look=True)
                )

        return await self._call(append)

    async def draw_sequence_ids(self, rollout_ids: Sequence[str]) -> Sequence[int]:
        return await self._transact(lambda tx: draw_sequence_ids(tx, rollout_ids))

    async def put_resources(
        self,
        resources_id: str,
        decide: DecideResources,
        *,
        becomes_latest: bool,
        key: str | None = None,
    ) -> ResourcesUpdate:
        async def put(tx: Transaction) -> ResourcesUpdate:
            known_id = await tx.remembered(key)
            statement = (
                f"SELECT {columns(RESOURCES_FIELDS)} FROM @resources WHERE resources_id = %s"
            )
            # Snapshots are few. One lock for all keeps the order of the latest ones.
            _, rows = await tx.read(lock("resources"), (statement, (known_id or resources_id,)))
            known = resources_from(rows[0]) if rows else None
            if known_id is not None and known is not None:
                return known
            update = decide(known)
            tx.save_resources(update, becomes_latest=becomes_latest)
            tx.remember(key, resources_id)
            return update

        return await self._transact(put)

    async def change_worker(self, worker_id: str, decide: DecideWorker) -> Worker:
        async def change(tx: Transaction) -> Worker:
            _, rows = await tx.read(lock(worker_id), find_worker(worker_id))
            before = worker_from(rows[0]) if rows else None
            after = decide(before)
            # Not synced: after a crash of the server the worker sends its next heartbeat.
            tx.write("SET LOCAL synchronous_commit = off")
            tx.change_worker(before, after)
            return after

        return await self._transact(change)

    # -- reading ---------------------------------------------------------------------------------

    async def get_rollout(self, rollout_id: str) -> RolloutRecord | None:
        return await self._call(lambda session: Queries(session.pool).rollout(rollout_id))

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        return await self._call(lambda session: Queries(session.pool).latest_attempt(rollout_id))

    async def get_resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        return await self._call(lambda session: Queries(session.pool).resources(resources_id))

    async def get_worker(self, worker_id: str) -> Worker | None:
        return await self._call(lambda session: Queries(session.pool).worker(worker_id))

    async def find_rollouts(self, query: RolloutQuery) -> tuple[Sequence[RolloutRecord], int]:
        return await self._call(lambda session: Queries(session.pool).rollouts(query))

    async def find_attempts(self, query: AttemptQuery) -> tuple[Sequence[Attempt], int]:
        return await self._call(lambda session: Queries(session.pool).attempts(query))

    async def find_spans(self, query: SpanQuery) -> tuple[Sequence[EncodedSpan], int]:
        return await self._call(lambda session: Queries(session.pool).spans(query))

    async def find_resources(self, query: ResourcesQuery) -> tuple[Sequence[ResourcesUpdate], int]:
        return await self._call(lambda session: Queries(session.pool).snapshots(query))

    async def find_workers(self, query: WorkerQuery) -> tuple[Sequence[Worker], int]:
        return await self._call(lambda session: Queries(session.pool).workers(query))

    async def rollout_statuses(self, rollout_ids: Sequence[str]) -> dict[str, RolloutStatus]:
        return await self._call(lambda session: Queries(session.pool).statuses(rollout_ids))

    # -- the watchdog ----------------------------------------------------------------------------

    async def begin_scan(self, now: float, debounce: float) -> bool:
        async def begin(tx: Transaction) -> bool:
            # A clock that was set back must not stop the scans. A value just ahead is that of
            # another process, whose write overtook this one.
            (due,) = await tx.read(
                (
                    (
                        "UPDATE @meta SET value = %s WHERE name = 'last_scan' "
                        "AND (value <= %s OR value > %s) RETURNING 1"
                    ),
                    (now, now - debounce, now + debounce),
                )
            )
            tx.write("SET LOCAL synchronous_commit = off")
            if due:
                tx.forget_requests()
            return bool(due)

        return await self._transact(begin)

    async def find_watched(self) -> Sequence[RolloutRecord]:
        return await self._call(lambda session: Queries(session.pool).watched())

    # -- maintenance -----------------------------------------------------------------------------

    async def restore(self, records: Sequence[Record]) -> int:
        """Store records unchanged; see :class:`agl_store_kit.Restorable`."""
        return await self._transact(lambda tx: maintenance.restore(tx, records))

    async def drop_rollouts(self, *, ended_before: float | None, keep_last: int | None) -> int:
        """Drop old finished rollouts; return how many."""
        statement, values = maintenance.find_old_partitions(ended_before, keep_last)
        partitions = await self._call(lambda session: session.pool.rows(statement, *values))
        dropped = 0
        for number, whole in partitions:
            some = _DROPPED_AT_ONCE
            while some == _DROPPED_AT_ONCE:
                drop = partial(
                    maintenance.drop_rollouts,
                    number=number,
                    whole=whole,
                    ended_before=ended_before,
                    keep_last=keep_last,
                    limit=_DROPPED_AT_ONCE,
                )
                some = await self._transact(drop)
                dropped += some
        return dropped


async def _transact(session: Session, work: Callable[[Transaction], Awaitable[T]]) -> T:
    """Run work in a transaction, then tell listeners what changed."""
    result, tx = await session.pool.transact(work)
    session.feed.publish(tx.notices)
    return result
