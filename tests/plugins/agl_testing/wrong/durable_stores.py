"""Durable stores that forget one thing when they are opened again."""

from __future__ import annotations

import asyncio

from agl_core.store import current_request_key
from agl_store_memory import InMemoryLightningStore

REOPEN = """
    async def reopen(self, store):
        return store.reopened()
"""


class Base(InMemoryLightningStore):
    """A store whose data outlives it, in this process."""

    CAUGHT_BY = ""

    def __init__(self) -> None:
        super().__init__(scan_debounce_seconds=0)
        self._requests = {}

    async def once(self, call):
        """Answer a repeated call as the first one; the store in memory ignores keys here."""
        key = current_request_key.get()
        if key is None:
            return await call
        requests = self._requests
        if key in requests:
            call.close()
        else:
            requests[key] = asyncio.ensure_future(call)
        return await requests[key]

    async def dequeue_many_rollouts(self, *, limit=1, worker_id=None, wait=0.0):
        call = super().dequeue_many_rollouts(limit=limit, worker_id=worker_id, wait=wait)
        return await self.once(call)

    async def add_resources(self, resources):
        return await self.once(super().add_resources(resources))

    async def update_resources(self, resources_id, resources):
        return await self.once(super().update_resources(resources_id, resources))

    def reopened(self):
        again = type(self)()
        again._backend = self._backend
        again._requests = self._requests
        again._watchdog = again._watchdog.__class__(self._backend, 0)
        self._backend.subscribe(again._waiters)
        self.forget(again._backend)
        return again

    def forget(self, backend) -> None:
        """Lose something."""


class WritesWorkersAtTheClose(Base):
    CAUGHT_BY = "test_what_a_call_wrote_is_stored_when_it_returns"

    unwritten = closed = False

    def reopened(self):
        again = super().reopened()
        again.unwritten = not self.closed
        return again

    async def close(self):
        self.closed = True
        await super().close()

    async def query_workers(self, **options):
        page = await super().query_workers(**options)
        return page.model_copy(update={"items": [], "total": 0}) if self.unwritten else page


class ClaimsMoreForARepeatedKey(Base):
    CAUGHT_BY = "test_a_call_repeated_after_a_restart_happens_once"

    def reopened(self):
        again = super().reopened()
        again._requests = {}
        return again


class ReopensTheQueueById(Base):
    CAUGHT_BY = "test_random_histories_survive_restarts"

    def forget(self, backend):
        backend._queue = type(backend._queue)(sorted(backend._queue.items()))


class ReopensWithTheFirstResources(Base):
    CAUGHT_BY = "test_random_histories_survive_restarts"

    def forget(self, backend):
        backend._latest_resources = next(iter(backend._resources.values()), None)


class ReopensWithFreshWorkers(Base):
    CAUGHT_BY = "test_random_histories_survive_restarts"

    def forget(self, backend):
        for worker_id, worker in backend._workers.items():
            freed = {"status": "unknown", "current_rollout_id": None, "current_attempt_id": None}
            backend._workers[worker_id] = worker.model_copy(update=freed)


class KeysSpansWithoutTheRollout(Base):
    CAUGHT_BY = "test_random_histories_survive_restarts"

    async def add_encoded_spans(self, spans):
        known = {
            span_id
            for entry in self._backend._entries.values()
            for attempt in (entry.spans._attempts.values() if entry.spans else ())
            for span_id in attempt.by_id
        }
        return await super().add_encoded_spans([s for s in spans if s.span_id not in known])
