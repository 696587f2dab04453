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
from agl_core.store.request_key import current_request_key
from agl_core.store.transfer import Record
from agl_core.store.waiting import FinishWait
from agl_core.types import (
    FINISHED_STATUSES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    TaskInput,
    Worker,
)
from agl_store_sqlite import operations, upkeep
from agl_store_sqlite.config import SqliteConfig
from agl_store_sqlite.reads import SqliteReads
from agl_store_sqlite.tables import Tables
from agl_store_sqlite.transaction import Transaction

__all__ = ["SqliteLightningStore"]

_RECORD_BYTES: Final = 64 * 1024
"""Span content that is as much work as one more record."""
_DROPPED_AT_ONCE: Final = 200
"""Rollouts per transaction when old ones are dropped, so that other writers get their turn."""


class SqliteLightningStore(SqliteReads):
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
        super().__init__(
            SqliteConfig(
                path=os.fspath(path),
                durability=durability,
                busy_seconds=busy_seconds,
                scan_debounce_seconds=scan_debounce_seconds,
            )
        )

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
            lambda tx: operations.create_rollouts(tx, batch, key=key, queued=True),
            records=len(batch),
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
            records=limit,
        )

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        key = current_request_key.get()
        return await self._write(
            lambda tx: operations.start_attempt(tx, rollout_id, worker_id, key)
        )

    async def return_claim(self, rollout_id: str, attempt_id: str) -> None:
        await self._write(lambda tx: operations.return_claim(tx, rollout_id, attempt_id))

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
        if not spans:
            return []
        size = sum(len(span.payload) for span in spans)
        return await self._write(
            lambda tx: operations.add_spans(tx, spans), records=len(spans) + size // _RECORD_BYTES
        )

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        ids = [rollout_id for rollout_id, _ in rollout_attempt_ids]
        if not ids:
            return []
        # Above every stored span's in any case; the span that takes one is synced itself.
        return await self._write(lambda tx: operations.draw_sequence_ids(tx, ids), lasting=False)

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
        # Of no worth after power loss: the worker is gone, or sends the next one.
        return await self._write(
            lambda tx: operations.heartbeat(tx, worker_id, changes), lasting=False
        )

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

    # -- upkeep ----------------------------------------------------------------------------------

    async def restore(self, records: Iterable[Record]) -> int:
        """Store records that are not there yet, as they were, in one transaction.

        Returns:
            How many.

        Raises:
            InvalidArgumentError: A record is malformed, or belongs to one that is missing.
        """
        batch = list(records)
        return await self._engine.write(lambda tx: upkeep.restore(tx, batch), records=len(batch))

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
                ),
                records=_DROPPED_AT_ONCE,
            )
            dropped += some
            if some < _DROPPED_AT_ONCE:
                break
        await asyncio.to_thread(self._engine.compact)
        return dropped

    async def _write(
        self,
        operation: Callable[[Transaction], Any],
        undo: Callable[[Transaction, Any], None] | None = None,
        *,
        records: int = 1,
        lasting: bool = True,
    ) -> Any:
        await self._scan_if_due()
        return await self._engine.write(operation, undo, records=records, lasting=lasting)


def _statuses(tables: Tables, rollout_ids: Sequence[str]) -> dict[str, str]:
    """Return the status of each rollout that exists, in the order given."""
    found: dict[str, str] = {}
    for rollout_id in rollout_ids:
        status = tables.status_of(rollout_id)
        if status is not None:
            found[rollout_id] = status
    return found
