"""Durable stores that forget one thing when they are opened again."""

from __future__ import annotations

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

    def reopened(self):
        again = type(self)()
        again._backend = self._backend
        again._watchdog = again._watchdog.__class__(self._backend, 0)
        self._backend.subscribe(again._waiters)
        self.forget(again._backend)
        return again

    def forget(self, backend) -> None:
        """Lose something."""


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
