"""The SQLite backend: each changing call is one operation in a transaction of the writer."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from agl_core.store import (
    EncodedSpan,
    LightningStoreCapabilities,
    LightningStoreStatistics,
)
from agl_core.types import Attempt, ResourcesUpdate, Rollout, RolloutStatus, Worker, evolve
from agl_store_kit import (
    AttemptQuery,
    ClaimRequest,
    Decide,
    DecideResources,
    DecideWorker,
    Notice,
    ResourcesQuery,
    RolloutQuery,
    RolloutRecord,
    RolloutState,
    SpanQuery,
    StorageBackend,
    WorkerQuery,
    lifecycle,
    standing_claims,
)
from agl_store_kit.lifecycle import Change
from agl_store_sqlite import queries
from agl_store_sqlite.config import SqliteConfig
from agl_store_sqlite.database import Database
from agl_store_sqlite.spans import append_spans, draw_sequence_ids
from agl_store_sqlite.transaction import StoredState, Transaction

__all__ = ["SqliteBackend"]

_FEW: Final = 100
"""Most records that a query may read in the event loop: about a millisecond. Handing a query to a
thread and its result back costs more than reading a few rows."""
_NOTHING: Final = Change()


class SqliteBackend(StorageBackend):
    """Keeps everything in one file. Thread-safe; a forked child opens the file again.

    Args:
        config: The store's configuration.

    Raises:
        StoreDataError: The file cannot be opened or used.
        StoreUnavailableError: Another process holds its lock for longer than ``busy_seconds``.
    """

    shares_records = False

    def __init__(self, config: SqliteConfig) -> None:
        self._current = Database(config, self.publish)
        self._inherited: list[Database] = []

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._current.path

    @property
    def database(self) -> Database:
        """The open file of this process."""
        if self._current.pid != os.getpid():
            # The parent's threads do not exist here, and its connections must not be used or
            # closed (https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_),
            # not even by the garbage collector.
            self._inherited.append(self._current)
            self._current = Database(self._current.config, self.publish)
        return self._current

    # -- about the store -------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "durable": True}

    async def statistics(self) -> LightningStoreStatistics:
        return await self.database.read(_statistics)

    def remote_changes(self) -> AbstractAsyncContextManager[object]:
        return self.database.remote.listening()

    async def close(self) -> None:
        if self._current.pid == os.getpid():
            self._current.close()

    # -- creating and claiming -------------------------------------------------------------------

    async def insert_rollouts(
        self,
        rollouts: Sequence[Rollout],
        *,
        begin: Decide | None = None,
        worker_id: str | None = None,
    ) -> Sequence[RolloutRecord] | None:
        def insert(tx: Transaction) -> list[RolloutRecord] | None:
            latest = None
            if any(rollout.resources_id is None for rollout in rollouts):
                latest = tx.latest_resources_id()
            worker = None if begin is None else tx.find_worker(worker_id)
            records: list[RolloutRecord] = []
            for rollout in rollouts:
                if rollout.resources_id is None and latest is not None:
                    rollout = evolve(rollout, {"resources_id": latest})
                ordinal = tx.insert_rollout(rollout, queued=begin is None)
                if ordinal is None:
                    return None  # a batch is inserted as a whole: if one id is taken, all are
                if begin is None:
                    notice = Notice("rollout", tx.now, rollout.rollout_id, status=rollout.status)
                    tx.notices.append(notice)
                    records.append((rollout, None))
                    continue
                state = RolloutState(rollout, 0, None, worker)
                change = begin(state)
                tx.apply(StoredState(ordinal, state), change or _NOTHING)
                records.append(_changed(state, change or _NOTHING))
            return records

        return await self.database.writer.write(insert)

    async def claim(self, request: ClaimRequest) -> Sequence[tuple[Rollout, Attempt]]:
        def claim(tx: Transaction) -> list[tuple[Rollout, Attempt]]:
            known = tx.remembered(request.key) or ()
            if standing := standing_claims([tx.state(*ids).state for ids in known]):
                return standing
            worker = tx.find_worker(request.worker_id)
            claimed: list[tuple[Rollout, Attempt]] = []
            heads = tx.queue_head(request.limit) if request.limit > 0 else []
            for place, (ordinal, attempts, rollout) in enumerate(heads):
                state = RolloutState(rollout, attempts, None, worker)
                change = request.begin(state, place)
                tx.apply(StoredState(ordinal, state), change)
                assert change.attempt is not None
                claimed.append((change.rollout or rollout, change.attempt))
                worker = change.worker or worker
            if claimed:
                ids = [(rollout.rollout_id, attempt.attempt_id) for rollout, attempt in claimed]
                tx.remember(request.key, ids)
            elif request.idle is not None:
                tx.change_worker(worker, request.idle(worker))
            return claimed

        return await self.database.writer.write(claim, undo=_return_claims)

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
        def change(tx: Transaction) -> RolloutRecord:
            stored = tx.state(rollout_id, attempt_id, worker_id, payload=payload)
            if tx.remembered(key):
                return _changed(stored.state, _NOTHING)
            changes = decide(stored.state) or _NOTHING
            tx.apply(stored, changes)
            tx.remember(key, True)
            return _changed(stored.state, changes)

        return await self.database.writer.write(change)

    async def append_spans(
        self, spans: Sequence[EncodedSpan], arrived: Decide
    ) -> Sequence[EncodedSpan]:
        return await self.database.writer.write(lambda tx: append_spans(tx, spans, arrived))

    async def draw_sequence_ids(self, rollout_ids: Sequence[str]) -> Sequence[int]:
        numbers: dict[str, int] = {}
        for rollout_id in rollout_ids:
            numbers[rollout_id] = numbers.get(rollout_id, 0) + 1

        def draw(tx: Transaction) -> list[int]:
            following = {
                rollout_id: draw_sequence_ids(tx, rollout_id, number) - number
                for rollout_id, number in numbers.items()
            }
            drawn: list[int] = []
            for rollout_id in rollout_ids:
                following[rollout_id] += 1
                drawn.append(following[rollout_id])
            return drawn

        # Not synced: the next id is above every stored span's id in any case, and the span that
        # takes this one is synced itself.
        return await self.database.writer.write(draw, synced=False)

    async def put_resources(
        self,
        resources_id: str,
        decide: DecideResources,
        *,
        becomes_latest: bool,
        key: str | None = None,
    ) -> ResourcesUpdate:
        def put(tx: Transaction) -> ResourcesUpdate:
            known_id = tx.remembered(key)
            known = queries.get_resources(tx.connection, known_id or resources_id)
            if known_id is not None and known is not None:
                return known
            update = decide(known)
            tx.save_resources(update, becomes_latest=becomes_latest)
            tx.remember(key, resources_id)
            return update

        return await self.database.writer.write(put)

    async def change_worker(self, worker_id: str, decide: DecideWorker) -> Worker:
        def change(tx: Transaction) -> Worker:
            before = tx.find_worker(worker_id)
            after = decide(before)
            tx.change_worker(before, after)
            return after

        # Not synced: after power loss the worker is gone, or sends its next heartbeat.
        return await self.database.writer.write(change, synced=False)

    # -- reading ---------------------------------------------------------------------------------

    async def get_rollout(self, rollout_id: str) -> RolloutRecord | None:
        return self.database.look(lambda db: queries.get_rollout(db, rollout_id))

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        return self.database.look(lambda db: queries.get_latest_attempt(db, rollout_id))

    async def get_resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        return self.database.look(lambda db: queries.get_resources(db, resources_id))

    async def get_worker(self, worker_id: str) -> Worker | None:
        return self.database.look(lambda db: queries.get_worker(db, worker_id))

    async def find_rollouts(self, query: RolloutQuery) -> tuple[Sequence[RolloutRecord], int]:
        if _is_quick(query):
            return self.database.look(lambda db: queries.find_rollouts(db, query))
        return await self.database.read(lambda db: queries.find_rollouts(db, query))

    async def find_spans(self, query: SpanQuery) -> tuple[Sequence[EncodedSpan], int]:
        database = self.database
        if database.look(lambda db: queries.count_spans_at_most(db, query.rollout_id)) <= _FEW:
            return database.look(lambda db: queries.find_spans(db, query))
        return await database.read(lambda db: queries.find_spans(db, query))

    async def find_attempts(self, query: AttemptQuery) -> tuple[Sequence[Attempt], int]:
        return await self.database.read(lambda db: queries.find_attempts(db, query))

    async def find_resources(self, query: ResourcesQuery) -> tuple[Sequence[ResourcesUpdate], int]:
        return await self.database.read(lambda db: queries.find_resources(db, query))

    async def find_workers(self, query: WorkerQuery) -> tuple[Sequence[Worker], int]:
        return await self.database.read(lambda db: queries.find_workers(db, query))

    async def rollout_statuses(self, rollout_ids: Sequence[str]) -> dict[str, RolloutStatus]:
        return await self.database.read(lambda db: queries.rollout_statuses(db, rollout_ids))

    # -- the watchdog ----------------------------------------------------------------------------

    async def begin_scan(self, now: float, debounce: float) -> bool:
        def begin(tx: Transaction) -> bool:
            # A clock that was set back must not stop the scans. A value just ahead is that of
            # another process, whose write overtook this one.
            due = tx.one(
                "UPDATE counters SET value = ?1 WHERE name = 'last_scan' "
                "AND (value <= ?1 - ?2 OR value > ?1 + ?2) RETURNING 1",
                now,
                debounce,
            )
            return due is not None

        return await self.database.writer.write(begin, synced=False)

    async def find_watched(self) -> Sequence[RolloutRecord]:
        return await self.database.read(queries.find_watched)


# -- helpers ---------------------------------------------------------------------------------------


def _is_quick(query: RolloutQuery) -> bool:
    """Whether indexes lead to a few rows, so that none are sorted or passed over."""
    filters = query.conditions.keys()
    if query.limit not in range(_FEW + 1) or not filters <= {"status_in", "rollout_id_in"}:
        return False
    if query.rollout_id_in is not None:
        return query.filter_logic == "and" and len(query.rollout_id_in) <= _FEW
    newest_first = query.sort_by == "start_time" and query.sort_order == "desc"
    ordered = newest_first or (not filters and query.sort_by in (None, "start_time"))
    return ordered and query.offset <= _FEW


def _changed(state: RolloutState, change: Change) -> RolloutRecord:
    """Return the rollout and the attempt after a change."""
    return change.rollout or state.rollout, change.attempt or state.attempt


def _return_claims(tx: Transaction, claimed: Sequence[tuple[Rollout, Attempt]]) -> None:
    """Undo claims whose caller was cancelled before it got them."""
    for rollout, attempt in reversed(claimed):
        stored = tx.state(rollout.rollout_id)
        current, _, latest, worker = stored.state
        if latest != attempt or current.status != "preparing":
            continue  # somebody has acted on it
        tx.delete_attempt(stored.ordinal, attempt)
        status = lifecycle.status_before_claim(attempt)
        back = evolve(current, {"status": status})
        columns = {"attempts": attempt.sequence_id - 1, "queue_position": tx.position_at_head()}
        tx.update_rollout(stored.ordinal, current, back, columns)
        tx.notices.append(Notice("rollout", tx.now, rollout.rollout_id, status=status))
        if worker is not None and worker.current_attempt_id == attempt.attempt_id:
            free = {"status": "idle", "current_rollout_id": None, "current_attempt_id": None}
            tx.change_worker(worker, evolve(worker, free))


def _statistics(connection: sqlite3.Connection) -> LightningStoreStatistics:
    counters = dict(connection.execute("SELECT name, value FROM counters").fetchall())
    (workers,) = connection.execute("SELECT count(*) FROM workers").fetchone()
    (resources,) = connection.execute("SELECT count(*) FROM resources").fetchone()
    return {
        "total_rollouts": counters["rollouts"],
        "total_attempts": counters["attempts"],
        "total_spans": counters["spans"],
        "total_resources": resources,
        "total_workers": workers,
        "total_span_bytes": counters["span_bytes"],
    }
