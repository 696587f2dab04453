"""The SQLite store: arguments in, one write or read of the engine each, copies out."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Literal

from agl_core.ids import new_resources_id
from agl_core.store import (
    UNSET,
    EncodedSpan,
    FilterLogic,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    StoreEvent,
    Unset,
)
from agl_core.store.arguments import (
    attempt_changes,
    checked_resources,
    new_rollout_fields,
    rollout_changes,
    worker_changes,
)
from agl_core.store.memory.waiting import FinishWait
from agl_core.store.query import renamed_filter
from agl_core.store.request_key import current_request_key
from agl_core.store.transfer import Record
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
    SortOrder,
    TaskInput,
    Worker,
    WorkerStatus,
)
from agl_core.types.copying import attach_attempt
from agl_store_sqlite import operations, queries, upkeep
from agl_store_sqlite.config import SqliteConfig
from agl_store_sqlite.engine import Engine
from agl_store_sqlite.queries import Page
from agl_store_sqlite.tables import Tables

__all__ = ["SqliteLightningStore"]

_SHORTEST_SLICE: Final = 0.05
"""Seconds between two looks of the watchdog while a call waits, without a debounce."""

_DROPPED_AT_ONCE: Final = 200
"""Rollouts per transaction when old ones are dropped, so that other writers get their turn."""


class SqliteLightningStore(LightningStore):
    """Keeps everything in one file, in WAL mode, for any number of processes of one machine.

    A call that wrote returns once its transaction is on disk; writes that arrive together share
    one commit. Thread-safe; usable from several loops; survives SIGKILL, and with
    ``durability="full"`` power loss. It may be pickled to another process, and used after a fork:
    there it opens the file anew.

    Args:
        path: The database file; it is created, its folder is not.
        durability: ``full`` or ``normal``; see :class:`agl_store_sqlite.config.SqliteConfig`.
        busy_seconds: How long a write waits for a foreign lock, in seconds.
        scan_debounce_seconds: Shortest time between two looks of the watchdog, in seconds.

    Raises:
        StoreDataError: The file cannot be used; the message says why.
        StoreUnavailableError: Another process has locked the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "agl.db",
        *,
        durability: Literal["full", "normal"] = "full",
        busy_seconds: float = 10.0,
        scan_debounce_seconds: float = 10.0,
    ) -> None:
        self._open(
            SqliteConfig(
                path=os.fspath(path),
                durability=durability,
                busy_seconds=busy_seconds,
                scan_debounce_seconds=scan_debounce_seconds,
            )
        )

    def _open(self, config: SqliteConfig) -> None:
        self._config = config
        self._current = Engine(config)
        self._started = self._last_scan = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        # The absolute path, because the other process may run elsewhere.
        return self._config.model_dump() | {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(SqliteConfig(**state))

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._current.path

    @property
    def _engine(self) -> Engine:
        # After a fork the parent's threads and connections are not ours to use.
        if self._current.pid != os.getpid():
            self._current = Engine(self._config)
        return self._current

    # -- about the store -------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=True, durable=True, events=True
        )

    async def statistics(self) -> LightningStoreStatistics:
        def read(tables: Tables) -> LightningStoreStatistics:
            counters = tables.counters()
            workers = tables.one("SELECT count(*) FROM workers")[0]
            resources = tables.one("SELECT count(*) FROM resources")[0]
            return LightningStoreStatistics(
                name=type(self).__name__,
                total_rollouts=counters["rollouts"],
                total_attempts=counters["attempts"],
                total_spans=counters["spans"],
                total_resources=resources,
                total_workers=workers,
                uptime=time.monotonic() - self._started,
                total_span_bytes=counters["span_bytes"],
            )

        return await self._read(read)

    async def close(self) -> None:
        self._current.close()

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
        key = current_request_key.get()
        return await self._write(lambda tx: operations.start_rollout(tx, fields, worker_id, key))

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        batch = [
            new_rollout_fields(item.input, item.mode, item.resources_id, item.config, item.metadata)
            for item in rollouts
        ]
        key = current_request_key.get()
        return await self._write(
            lambda tx: operations.create_rollouts(tx, batch, key=key, queued=True)
        )

    # -- claiming work ---------------------------------------------------------------------------

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        deadline = time.monotonic() + wait
        claimed = await self._claim(limit, worker_id, note_idle=True)
        if claimed or wait <= 0 or limit <= 0:
            return claimed
        engine = self._engine
        ticket, wakeup = engine.listeners.join()
        try:
            # Work that came between the claim above and the place in the line woke nobody.
            claimed = await self._claim(limit, worker_id, note_idle=False)
            while not claimed:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return []
                await wakeup.wait(self._slice(remaining))
                claimed = await self._claim(limit, worker_id, note_idle=False)
                engine.listeners.resume(ticket)
            return claimed
        finally:
            engine.listeners.leave(ticket)
            available = engine.listeners.waiting_for_work
            if available:
                length = engine.look(lambda tables: tables.queue_length(available))
                engine.listeners.work_arrived(length)

    async def _claim(
        self, limit: int, worker_id: str | None, *, note_idle: bool
    ) -> list[AttemptedRollout]:
        key = current_request_key.get()
        return await self._write(
            lambda tx: operations.claim(tx, limit, worker_id, key=key, note_idle=note_idle),
            undo=operations.give_back,
        )

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        key = current_request_key.get()
        return await self._write(
            lambda tx: operations.start_attempt(tx, rollout_id, worker_id, key)
        )

    # -- reading ---------------------------------------------------------------------------------

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout | AttemptedRollout]:
        conditions = {
            "status_in": renamed_filter("status_in", status_in, "status", status),
            "rollout_id_in": renamed_filter(
                "rollout_id_in", rollout_id_in, "rollout_ids", rollout_ids
            ),
            "rollout_id_contains": rollout_id_contains,
        }
        page = Page(sort_by, sort_order, limit, offset)
        return await self._read(
            lambda tables: queries.find_rollouts(tables, page, filter_logic, **conditions)
        )

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        page = Page(sort_by, sort_order, limit, offset)
        return await self._read(lambda tables: queries.find_attempts(tables, page, rollout_id))

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        def read(tables: Tables) -> Rollout | AttemptedRollout | None:
            rollout = tables.find_rollout(rollout_id)
            if rollout is None:
                return None
            attempt = tables.find_attempt(rollout_id, "latest")
            return rollout if attempt is None else attach_attempt(rollout, attempt)

        return await self._look(read)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        return await self._look(lambda tables: tables.find_attempt(rollout_id, "latest"))

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        page = Page(sort_by, sort_order, limit, offset)
        return await self._read(
            lambda tables: queries.find_resources(
                tables,
                page,
                resources_id=resources_id,
                resources_id_contains=resources_id_contains,
            )
        )

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return self._engine.look(lambda tables: tables.find_resources(resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return self._engine.look(lambda tables: tables.find_resources(None))

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        page = Page(sort_by, sort_order, limit, offset)
        conditions = {"status_in": status_in, "worker_id_contains": worker_id_contains}
        return await self._read(
            lambda tables: queries.find_workers(tables, page, filter_logic, **conditions)
        )

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return self._engine.look(lambda tables: tables.find_worker(worker_id))

    async def query_encoded_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[EncodedSpan]:
        page = Page(sort_by, sort_order, limit, offset)
        conditions = {
            "trace_id": trace_id,
            "trace_id_contains": trace_id_contains,
            "span_id": span_id,
            "span_id_contains": span_id_contains,
            "parent_id": parent_id,
            "parent_id_contains": parent_id_contains,
            "name": name,
            "name_contains": name_contains,
        }
        return await self._read(
            lambda tables: queries.find_spans(
                tables, page, rollout_id, attempt_id, filter_logic, **conditions
            )
        )

    # -- resources and spans ---------------------------------------------------------------------

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        return await self.update_resources(new_resources_id(), resources)

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        checked = checked_resources(resources)
        key = current_request_key.get()
        return await self._write(
            lambda tx: operations.put_resources(tx, resources_id, checked, key)
        )

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        return await self._write(lambda tx: operations.add_spans(tx, spans)) if spans else []

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        ids = [rollout_id for rollout_id, _ in rollout_attempt_ids]
        return await self._write(lambda tx: operations.draw_sequence_ids(tx, ids)) if ids else []

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
        return await self._write(lambda tx: operations.update_rollout(tx, rollout_id, changes))

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
        return await self._write(
            lambda tx: operations.update_attempt(tx, rollout_id, attempt_id, changes)
        )

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        changes = worker_changes(worker_id, heartbeat_stats)
        return await self._write(lambda tx: operations.heartbeat(tx, worker_id, changes))

    # -- waiting ---------------------------------------------------------------------------------

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        deadline = None if timeout is None else time.monotonic() + timeout
        wanted = list(dict.fromkeys(rollout_ids))
        known = await self._read(lambda tables: _statuses(tables, wanted))
        pending = {name for name, status in known.items() if status not in FINISHED_STATUSES}
        if not pending or (timeout is not None and timeout <= 0):
            return await self._finished(wanted)
        listeners = self._engine.listeners
        wait = FinishWait(set(known))
        listeners.watch(wait, set(known))
        try:
            await self._engine.read(lambda tables: listeners.settle(wait, tables))
            while wait.pending:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    break
                await wait.wakeup.wait(self._slice(remaining))
                await self._scan_if_due()
                listeners.rearm(wait)
        finally:
            listeners.unwatch(wait, set(known))
        return await self._finished(wanted)

    async def _finished(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        def read(tables: Tables) -> list[Rollout]:
            found = (tables.find_rollout(rollout_id) for rollout_id in rollout_ids)
            return [item for item in found if item and item.status in FINISHED_STATUSES]

        return await self._engine.read(read)

    async def events(self) -> AsyncGenerator[StoreEvent]:
        listeners = self._engine.listeners
        subscription = listeners.subscribe()
        try:
            more = True
            while more:
                batch, more = listeners.take(subscription)
                for event in batch:
                    yield event
                if more:
                    await subscription.wakeup.wait()
        finally:
            listeners.unsubscribe(subscription)

    # -- the watchdog ----------------------------------------------------------------------------

    async def run_watchdog(self) -> int:
        self._last_scan = time.monotonic()
        debounce = self._config.scan_debounce_seconds
        return await self._engine.write(partial(operations.pass_verdicts, debounce=debounce))

    async def _scan_if_due(self) -> None:
        if time.monotonic() - self._last_scan >= self._config.scan_debounce_seconds:
            await self.run_watchdog()

    def _slice(self, remaining: float | None) -> float:
        """How long a waiting call may sleep before the watchdog must look again, in seconds."""
        period = max(self._config.scan_debounce_seconds, _SHORTEST_SLICE)
        return period if remaining is None else max(min(period, remaining), 0.0)

    # -- upkeep ----------------------------------------------------------------------------------

    async def restore(self, records: Iterable[Record]) -> int:
        """Store records that are not there yet, as they were, in one transaction.

        Returns:
            How many.

        Raises:
            InvalidArgumentError: A record is malformed, or belongs to one that is missing.
        """
        batch = list(records)
        return await self._engine.write(lambda tx: upkeep.restore(tx, batch))

    async def vacuum(
        self, *, ended_before: float | None = None, keep_last: int | None = None
    ) -> int:
        """Drop finished rollouts with their attempts and spans, and give the space back.

        Other processes may have the file open; while the space is given back their writes wait.

        Args:
            ended_before: Keep what ended at this time or later, in epoch seconds.
            keep_last: Keep so many of the rollouts begun last.

        Returns:
            How many rollouts were dropped; without any argument none are.
        """
        dropped = 0
        while ended_before is not None or keep_last is not None:
            some = await self._engine.write(
                partial(
                    upkeep.forget_rollouts,
                    ended_before=ended_before,
                    keep_last=keep_last,
                    at_most=_DROPPED_AT_ONCE,
                )
            )
            dropped += some
            if some < _DROPPED_AT_ONCE:
                break
        await asyncio.to_thread(self._engine.compact)
        return dropped

    # -- reads and writes, after the watchdog has looked -----------------------------------------

    async def _write(
        self,
        operation: Callable[[operations.Transaction], Any],
        undo: Callable[[operations.Transaction, Any], None] | None = None,
    ) -> Any:
        await self._scan_if_due()
        return await self._engine.write(operation, undo)

    async def _read(self, read: Callable[[Tables], Any]) -> Any:
        await self._scan_if_due()
        return await self._engine.read(read)

    async def _look(self, read: Callable[[Tables], Any]) -> Any:
        await self._scan_if_due()
        return self._engine.look(read)


def _statuses(tables: Tables, rollout_ids: Sequence[str]) -> dict[str, str]:
    """Return the status of each rollout that exists, in the order given."""
    found: dict[str, str] = {}
    for rollout_id in rollout_ids:
        status = tables.status_of(rollout_id)
        if status is not None:
            found[rollout_id] = status
    return found
