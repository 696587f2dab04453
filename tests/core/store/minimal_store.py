# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
"""A store written for version 0.3: its methods, its signatures, and plain lists."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Any

from agl_core.store import UNSET, LightningStore
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Span,
    Worker,
)

FINISHED = ("succeeded", "failed", "cancelled")


class MinimalStore(LightningStore):
    """Keeps everything in dicts. Not thread-safe, as 0.3's stores are by default."""

    def __init__(self) -> None:
        self.rollouts: dict[str, Rollout] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        self.spans: dict[tuple[str, str, str], Span] = {}
        self.resources: dict[str, ResourcesUpdate] = {}
        self.latest = ""
        self.workers: dict[str, Worker] = {}
        self.queue: list[str] = []
        self.counters: dict[str, int] = {}

    @property
    def capabilities(self):
        return {"async_safe": True}

    # -- work ------------------------------------------------------------------------------------

    async def start_rollout(
        self,
        input: Any,
        mode: Any = None,
        resources_id: Any = None,
        config: Any = None,
        metadata: Any = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        rollout = await self.enqueue_rollout(input, mode, resources_id, config, metadata)
        self.queue.remove(rollout.rollout_id)
        return await self.start_attempt(rollout.rollout_id, worker_id)

    async def enqueue_rollout(
        self,
        input: Any,
        mode: Any = None,
        resources_id: Any = None,
        config: Any = None,
        metadata: Any = None,
    ) -> Rollout:
        rollout = Rollout(
            rollout_id=f"ro-{len(self.rollouts)}",
            input=copy.deepcopy(input),
            start_time=time.time(),
            mode=mode,
            resources_id=resources_id or self.latest or None,
            config=config or RolloutConfig(),
            metadata=metadata or {},
        )
        self.rollouts[rollout.rollout_id] = rollout
        self.attempts[rollout.rollout_id] = []
        self.queue.append(rollout.rollout_id)
        return rollout.model_copy(deep=True)

    async def enqueue_many_rollouts(self, rollouts: list[EnqueueRolloutRequest]) -> list[Rollout]:
        return [await self.enqueue_rollout(**dict(request)) for request in rollouts]

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        return await self.start_attempt(self.queue.pop(0), worker_id) if self.queue else None

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> list[AttemptedRollout]:
        heads, self.queue = self.queue[:limit], self.queue[limit:]
        return [await self.start_attempt(head, worker_id) for head in heads]

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        rollout, attempts = self.rollouts[rollout_id], self.attempts[rollout_id]
        attempt = Attempt(
            rollout_id=rollout_id,
            attempt_id=f"at-{len(attempts)}",
            sequence_id=len(attempts) + 1,
            start_time=time.time(),
            worker_id=worker_id,
        )
        attempts.append(attempt)
        rollout.status = "preparing"
        return AttemptedRollout(**rollout.model_dump(), attempt=attempt.model_copy())

    # -- reading: lists, as 0.3's contract promises only a sequence --------------------------------

    async def query_rollouts(
        self,
        *,
        status_in: Any = None,
        rollout_id_in: Any = None,
        rollout_id_contains: str | None = None,
        filter_logic: str = "and",
        sort_by: str | None = None,
        sort_order: str = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Any = None,
        rollout_ids: Any = None,
    ) -> list[Rollout]:
        found = [
            rollout.model_copy(deep=True)
            for rollout in self.rollouts.values()
            if (status_in is None or rollout.status in status_in)
            and (rollout_id_in is None or rollout.rollout_id in rollout_id_in)
        ]
        return found[offset:] if limit == -1 else found[offset : offset + limit]

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: str = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> list[Attempt]:
        found = [attempt.model_copy() for attempt in self.attempts.get(rollout_id, [])]
        return found[offset:] if limit == -1 else found[offset : offset + limit]

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        rollout = self.rollouts.get(rollout_id)
        return rollout and rollout.model_copy(deep=True)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        attempts = self.attempts.get(rollout_id)
        return attempts[-1].model_copy() if attempts else None

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: str = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> list[ResourcesUpdate]:
        return list(self.resources.values())

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return self.resources.get(resources_id)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return self.resources.get(self.latest)

    async def query_workers(
        self,
        *,
        status_in: Any = None,
        worker_id_contains: str | None = None,
        filter_logic: str = "and",
        sort_by: str | None = None,
        sort_order: str = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> list[Worker]:
        return list(self.workers.values())

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return self.workers.get(worker_id)

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: str = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: str = "asc",
    ) -> list[Span]:
        if attempt_id == "latest":
            attempt_id = self.attempts[rollout_id][-1].attempt_id
        found = sorted(
            (
                span.model_copy(deep=True)
                for key, span in self.spans.items()
                if key[0] == rollout_id and attempt_id in (None, key[1])
            ),
            key=lambda span: span.sequence_id,
        )
        return found[offset:] if limit == -1 else found[offset : offset + limit]

    # -- resources, spans, updates ---------------------------------------------------------------

    async def add_resources(self, resources: Any) -> ResourcesUpdate:
        return await self.update_resources(f"rs-{len(self.resources)}", resources)

    async def update_resources(self, resources_id: str, resources: Any) -> ResourcesUpdate:
        known = self.resources.get(resources_id)
        now = time.time()
        self.latest = resources_id
        update = self.resources[resources_id] = ResourcesUpdate(
            resources_id=resources_id,
            create_time=known.create_time if known else now,
            update_time=now,
            version=known.version + 1 if known else 1,
            resources=resources,
        )
        return update

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        self.counters[rollout_id] = self.counters.get(rollout_id, 0) + 1
        return self.counters[rollout_id]

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: list[tuple[str, str]]
    ) -> list[int]:
        return [await self.get_next_span_sequence_id(*ids) for ids in rollout_attempt_ids]

    async def add_span(self, span: Span) -> Span | None:
        key = (span.rollout_id, span.attempt_id, span.span_id)
        if key in self.spans:
            return None
        self.spans[key] = span.model_copy(deep=True)
        attempt = next(a for a in self.attempts[key[0]] if a.attempt_id == key[1])
        attempt.last_heartbeat_time = time.time()
        if attempt.status == "preparing":
            attempt.status = self.rollouts[key[0]].status = "running"
        return span

    async def add_many_spans(self, spans: list[Span]) -> list[Span]:
        return [span for span in spans if await self.add_span(span) is not None]

    async def update_rollout(
        self,
        rollout_id: str,
        input: Any = UNSET,
        mode: Any = UNSET,
        resources_id: Any = UNSET,
        status: Any = UNSET,
        config: Any = UNSET,
        metadata: Any = UNSET,
    ) -> Rollout:
        if rollout_id not in self.rollouts:
            raise ValueError(f"Rollout {rollout_id} does not exist")
        rollout = self.rollouts[rollout_id]
        if status is not UNSET:
            rollout.status = status
            rollout.end_time = time.time() if status in FINISHED else None
            if status in ("queuing", "requeuing") and rollout_id not in self.queue:
                self.queue.append(rollout_id)
        if metadata is not UNSET:
            rollout.metadata = metadata
        return rollout.model_copy(deep=True)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: Any = UNSET,
        worker_id: Any = UNSET,
        last_heartbeat_time: Any = UNSET,
        metadata: Any = UNSET,
    ) -> Attempt:
        attempts = self.attempts[rollout_id]
        latest = attempt_id == "latest"
        attempt = attempts[-1] if latest else {a.attempt_id: a for a in attempts}[attempt_id]
        if metadata is not UNSET:
            attempt.metadata = metadata
        if status is not UNSET:
            attempt.status = status
            if status in ("succeeded", "failed"):
                attempt.end_time = time.time()
            await self.update_rollout(rollout_id, status=status)
        return attempt.model_copy()

    async def update_worker(self, worker_id: str, heartbeat_stats: Any = UNSET) -> Worker:
        worker = self.workers.setdefault(worker_id, Worker(worker_id=worker_id))
        worker.last_heartbeat_time = time.time()
        if heartbeat_stats is not UNSET:
            worker.heartbeat_stats = heartbeat_stats
        return worker

    async def wait_for_rollouts(
        self, *, rollout_ids: list[str], timeout: float | None = None
    ) -> list[Rollout]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            known = [self.rollouts[name] for name in rollout_ids if name in self.rollouts]
            finished = [item.model_copy(deep=True) for item in known if item.status in FINISHED]
            late = deadline is not None and time.monotonic() >= deadline
            if late or len(finished) == len(known):
                return finished
            await asyncio.sleep(0.01)
