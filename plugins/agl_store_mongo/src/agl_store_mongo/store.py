"""The MongoDB store: arguments in, one call of the engine each, copies out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, Literal

from agl_core.ids import new_resources_id
from agl_core.store import (
    UNSET,
    EncodedSpan,
    LightningStoreCapabilities,
    StoreEvent,
    Unset,
    attempt_changes,
    checked_resources,
    current_request_key,
    new_rollout_fields,
    rollout_changes,
    worker_changes,
)
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
from agl_store_mongo.config import MongoConfig
from agl_store_mongo.engine import Engine
from agl_store_mongo.keys import id_from
from agl_store_mongo.reading import Reading

__all__ = ["MongoLightningStore"]

_SHORTEST_NAP: Final = 0.05
"""Seconds between two looks of the watchdog while a call waits, without a debounce."""


class MongoLightningStore(Reading):
    """Keeps everything in MongoDB, for any number of processes on any number of machines.

    A standalone server is enough: every change is one atomic write to one document, checked against
    the version it was decided upon. A call that wrote returns once a majority of the servers has
    the write. Thread-safe; usable from several loops. It may be pickled to another process, and
    used after a fork: there it connects anew. It connects at the first call.

    Args:
        uri: The server's connection string; see :class:`agl_store_mongo.config.MongoConfig`.
        database_name: The database.
        partition_id: Stores with different partitions know nothing of each other.
        timeout_seconds: How long a call looks for a server, in seconds.
        scan_debounce_seconds: Shortest time between two looks of the watchdog, in seconds.

    Raises:
        StoreDataError: The connection string is wrong. Calls raise it for what the server refuses.
        StoreUnavailableError: Raised by calls while the server cannot be reached.
    """

    def __init__(
        self,
        uri: str = "mongodb://localhost:27017",
        *,
        database_name: str = "agentlightning",
        partition_id: str = "default",
        timeout_seconds: float = 5.0,
        scan_debounce_seconds: float = 10.0,
    ) -> None:
        self._open(
            MongoConfig(
                uri=uri,
                database_name=database_name,
                partition_id=partition_id,
                timeout_seconds=timeout_seconds,
                scan_debounce_seconds=scan_debounce_seconds,
            )
        )

    def __getstate__(self) -> dict[str, Any]:
        return self._config.model_dump()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(MongoConfig(**state))

    @property
    def host(self) -> str:
        """The servers' addresses, without credentials."""
        return self._current.host

    # -- about the store -------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=True, durable=True, events=True
        )

    async def close(self) -> None:
        await self._current.close()

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
        return await self._call(lambda engine: engine.creating.start(fields, worker_id, key))

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        batch = [
            new_rollout_fields(item.input, item.mode, item.resources_id, item.config, item.metadata)
            for item in rollouts
        ]
        key = current_request_key.get()
        return await self._call(lambda engine: engine.creating.enqueue(batch, key))

    # -- claiming work ---------------------------------------------------------------------------

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        key = current_request_key.get()
        deadline = time.monotonic() + wait

        async def claim(engine: Engine) -> list[AttemptedRollout]:
            claimed = await engine.claim(limit, worker_id, key, note_idle=True)
            if claimed or wait <= 0 or limit <= 0:
                return claimed
            return await engine.waiting.for_work(
                lambda: engine.claim(limit, worker_id, key, note_idle=False), deadline, self._nap
            )

        await self._scan_if_due()
        engine = self._engine
        return await engine.call(claim, stop=True, undo=engine.claiming.give_back)

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        key = current_request_key.get()
        return await self._call(
            lambda engine: engine.rollouts.begin_attempt(rollout_id, worker_id, key)
        )

    async def return_claim(self, rollout_id: str, attempt_id: str) -> None:
        await self._call(lambda engine: engine.rollouts.return_claim(rollout_id, attempt_id))

    # -- resources and spans ---------------------------------------------------------------------

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        key = current_request_key.get()
        resources_id = new_resources_id() if key is None else id_from("rs-", key)
        return await self.update_resources(resources_id, resources)

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        checked = checked_resources(resources)
        key = current_request_key.get()
        return await self._call(lambda engine: engine.resources.put(resources_id, checked, key))

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        batch = list(spans)
        return await self._engine.call(lambda engine: engine.spans.add(batch))

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        rollout_ids = [rollout_id for rollout_id, _ in rollout_attempt_ids]
        return await self._engine.call(lambda engine: engine.spans.draw(rollout_ids))

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
        return await self._call(lambda engine: engine.rollouts.update(rollout_id, changes))

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
        return await self._call(
            lambda engine: engine.rollouts.update_attempt(rollout_id, attempt_id, changes)
        )

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        changes = worker_changes(worker_id, heartbeat_stats)
        return await self._engine.call(lambda engine: engine.workers.heartbeat(worker_id, changes))

    # -- waiting ---------------------------------------------------------------------------------

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        deadline = None if timeout is None else time.monotonic() + timeout
        wanted = list(dict.fromkeys(rollout_ids))

        async def wait(engine: Engine) -> list[Rollout]:
            found = await engine.rollouts.find_many(wanted, light=True)
            pending = [
                record
                for record in found.values()
                if record.rollout.status not in FINISHED_STATUSES
            ]
            if pending and (timeout is None or timeout > 0):
                await engine.waiting.for_rollouts(
                    set(found), deadline, self._nap, self._scan_if_due
                )
            known = await engine.rollouts.find_many(wanted)
            return [
                known[rollout_id].rollout
                for rollout_id in wanted
                if rollout_id in known and known[rollout_id].rollout.status in FINISHED_STATUSES
            ]

        await self._scan_if_due()
        return await self._engine.call(wait, stop=True)

    async def events(self) -> AsyncGenerator[StoreEvent]:
        engine = self._engine
        subscription = await engine.call(lambda engine: engine.waiting.subscribe())
        try:
            while batch := await engine.call(
                lambda engine: engine.waiting.next_events(subscription), stop=True
            ):
                for event in batch:
                    yield event
        finally:
            await engine.call(lambda engine: engine.waiting.unsubscribe(subscription))

    def _nap(self, remaining: float | None) -> float:
        """How long a waiting call may sleep before the watchdog must look again, in seconds."""
        period = max(self._config.scan_debounce_seconds, _SHORTEST_NAP)
        return period if remaining is None else max(min(period, remaining), 0.0)
