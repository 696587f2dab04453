"""Any store, usable from several threads."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar, cast

from agl_core.store.base import LightningStore, LightningStoreCapabilities, StoreEvent
from agl_core.store.mutex import CrossLoopLock
from agl_core.store.wakeup import Wakeup
from agl_core.types import AttemptedRollout, Rollout

__all__ = ["LightningStoreThreaded"]

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

_LOOK_AGAIN: Final = 1.0
"""Seconds after which a waiting call looks again although no call came through this facade: the
store's watchdog may have changed something."""


def _delegated(method: F, *, changes: bool = False) -> F:
    """Make a method that calls the same method of the inner store, alone if it must be."""
    name = method.__name__

    # Without the __dict__, in which an abstract method is marked as one.
    @functools.wraps(method, updated=())
    async def call(self: LightningStoreThreaded, *args: Any, **kwargs: Any) -> Any:
        inner = getattr(self.store, name)
        if self.inner_is_safe:
            return await inner(*args, **kwargs)
        async with self.lock:
            result = await inner(*args, **kwargs)
        if changes:
            self.wake_waiting()
        return result

    return cast("F", call)


class LightningStoreThreaded(LightningStore):
    """Makes a store usable from several threads, each with its own event loop.

    A store that is thread-safe itself is called directly. For any other, calls are made one at a
    time, without blocking a thread; a call that waits for something lets the others through.

    Args:
        store: The store to call.
    """

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self.inner_is_safe = bool(store.capabilities.get("thread_safe"))
        self.lock = CrossLoopLock()
        self._guard = threading.Lock()
        self._waiting: dict[Wakeup, None] = {}

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self.store.capabilities, "thread_safe": True, "async_safe": True}

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()

    def attempt_token(self, rollout_id: str, attempt_id: str) -> str | None:
        return self.store.attempt_token(rollout_id, attempt_id)

    def events(self) -> AsyncIterator[StoreEvent]:
        return self.store.events()

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int | None:
        if not self.inner_is_safe:
            return None
        return self.store.draw_span_sequence_id(rollout_id, attempt_id)

    statistics = _delegated(LightningStore.statistics)
    close = _delegated(LightningStore.close, changes=True)
    start_rollout = _delegated(LightningStore.start_rollout, changes=True)
    enqueue_rollout = _delegated(LightningStore.enqueue_rollout, changes=True)
    enqueue_many_rollouts = _delegated(LightningStore.enqueue_many_rollouts, changes=True)
    start_attempt = _delegated(LightningStore.start_attempt, changes=True)
    return_claim = _delegated(LightningStore.return_claim, changes=True)
    query_rollouts = _delegated(LightningStore.query_rollouts)
    query_attempts = _delegated(LightningStore.query_attempts)
    get_rollout_by_id = _delegated(LightningStore.get_rollout_by_id)
    get_latest_attempt = _delegated(LightningStore.get_latest_attempt)
    query_resources = _delegated(LightningStore.query_resources)
    get_resources_by_id = _delegated(LightningStore.get_resources_by_id)
    get_latest_resources = _delegated(LightningStore.get_latest_resources)
    query_workers = _delegated(LightningStore.query_workers)
    get_worker_by_id = _delegated(LightningStore.get_worker_by_id)
    query_spans = _delegated(LightningStore.query_spans)
    query_encoded_spans = _delegated(LightningStore.query_encoded_spans)
    add_resources = _delegated(LightningStore.add_resources, changes=True)
    update_resources = _delegated(LightningStore.update_resources, changes=True)
    add_span = _delegated(LightningStore.add_span, changes=True)
    add_many_spans = _delegated(LightningStore.add_many_spans, changes=True)
    add_encoded_spans = _delegated(LightningStore.add_encoded_spans, changes=True)
    add_otel_span = _delegated(LightningStore.add_otel_span, changes=True)
    get_next_span_sequence_id = _delegated(LightningStore.get_next_span_sequence_id)
    get_many_span_sequence_ids = _delegated(LightningStore.get_many_span_sequence_ids)
    update_rollout = _delegated(LightningStore.update_rollout, changes=True)
    update_attempt = _delegated(LightningStore.update_attempt, changes=True)
    update_worker = _delegated(LightningStore.update_worker, changes=True)
    run_watchdog = _delegated(LightningStore.run_watchdog, changes=True)
    # The waiting calls of a store that is not thread-safe would hold the lock while they wait, so
    # they look again and again; a look wakes nobody, or two that wait would keep each other awake.
    _dequeue_many = _delegated(LightningStore.dequeue_many_rollouts)
    _wait_for = _delegated(LightningStore.wait_for_rollouts)

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        if self.inner_is_safe:
            return await self.store.dequeue_rollout(worker_id, wait=wait)
        claimed = await self.dequeue_many_rollouts(limit=1, worker_id=worker_id, wait=wait)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        if self.inner_is_safe or wait <= 0 or limit <= 0:
            return await self._dequeue_many(limit=limit, worker_id=worker_id, wait=wait)

        async def claim() -> tuple[Sequence[AttemptedRollout], bool]:
            claimed = await self._dequeue_many(limit=limit, worker_id=worker_id)
            return claimed, bool(claimed)

        return await self._until(claim, wait)

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        if self.inner_is_safe or (timeout is not None and timeout <= 0):
            return await self._wait_for(rollout_ids=rollout_ids, timeout=timeout)
        known = {item.rollout_id for item in await self.query_rollouts(rollout_id_in=rollout_ids)}

        async def look() -> tuple[Sequence[Rollout], bool]:
            finished = await self._wait_for(rollout_ids=rollout_ids, timeout=0)
            return finished, {item.rollout_id for item in finished} == known

        return await self._until(look, timeout)

    def wake_waiting(self) -> None:
        """Let the waiting calls look again; called after every call that may change something."""
        with self._guard:
            for wakeup in self._waiting:
                wakeup.set()

    async def _until(
        self, look: Callable[[], Coroutine[Any, Any, tuple[Any, bool]]], timeout: float | None
    ) -> Any:
        """Look until there is what is waited for, or until the timeout; return the last look."""
        deadline = None if timeout is None else time.monotonic() + timeout
        wakeup = Wakeup()
        with self._guard:
            self._waiting[wakeup] = None
        try:
            while True:
                with self._guard:
                    wakeup.clear()
                result, enough = await look()
                remaining = _LOOK_AGAIN if deadline is None else deadline - time.monotonic()
                if enough or remaining <= 0:
                    return result
                await wakeup.wait(min(remaining, _LOOK_AGAIN))
        finally:
            with self._guard:
                del self._waiting[wakeup]
