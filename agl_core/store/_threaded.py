"""A wrapper that makes any store usable from several threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from agl_core.store._base import LightningStore
from agl_core.store._delegating import DelegatingStore
from agl_core.store._mutex import CrossLoopLock
from agl_core.store._values import LightningStoreCapabilities
from agl_core.store._wakeup import Wakeup
from agl_core.types import AttemptedRollout, Rollout

_LOOK_AGAIN: Final = 1.0
"""Seconds after which a waiting call checks again although no other call was made: the inner
store's watchdog may have changed a rollout."""
_READS: Final = ("query_", "get_rollout", "get_latest", "get_resources", "get_worker", "statistics")
"""Begins of the names of methods that change nothing."""
_REPEATED: Final = ("dequeue_rollout", "dequeue_many_rollouts", "wait_for_rollouts")
"""Methods that a waiting call repeats until it is satisfied."""


class LightningStoreThreaded(DelegatingStore):
    """Makes a store usable from several threads, each with its own event loop.

    A store that is thread-safe itself is called directly. Any other gets one call at a time,
    without blocking a thread; a call that waits for work or rollouts does not block the others.

    Args:
        store: The store to call.
    """

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self.inner_is_safe = bool(store.capabilities.get("thread_safe"))
        self._lock = CrossLoopLock()
        self._guard = threading.Lock()
        self._waiting: dict[Wakeup, None] = {}

    def target(self) -> LightningStore:
        return self.store

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self.store.capabilities, "thread_safe": True, "async_safe": True}

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int | None:
        return super().draw_span_sequence_id(rollout_id, attempt_id) if self.inner_is_safe else None

    async def delegate(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if self.inner_is_safe:
            return await getattr(self.store, name)(*args, **kwargs)
        async with self._lock:
            result = await getattr(self.store, name)(*args, **kwargs)
        # The check of a waiting call wakes no other: two of them would wake each other for ever.
        if not name.startswith(_READS) and name not in _REPEATED:
            with self._guard:
                for wakeup in self._waiting:
                    wakeup.set()
        return result

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
        name = "dequeue_many_rollouts"
        if self.inner_is_safe or wait <= 0 or limit <= 0:
            return await self.delegate(name, limit=limit, worker_id=worker_id, wait=wait)

        async def claim() -> tuple[Sequence[AttemptedRollout], bool]:
            claimed = await self.delegate(name, limit=limit, worker_id=worker_id)
            return claimed, bool(claimed)

        return await self._until(claim, wait)

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        name = "wait_for_rollouts"
        if self.inner_is_safe or (timeout is not None and timeout <= 0):
            return await self.delegate(name, rollout_ids=rollout_ids, timeout=timeout)
        finished: Sequence[Rollout] = []

        async def look() -> tuple[Sequence[Rollout], bool]:
            nonlocal finished
            finished = await self.delegate(name, rollout_ids=rollout_ids, timeout=0)
            return finished, {item.rollout_id for item in finished} == known

        limit = asyncio.timeout(timeout)  # holds also while another call keeps the store busy
        try:
            async with limit:
                page = await self.query_rollouts(rollout_id_in=rollout_ids)
                known = {item.rollout_id for item in page}
                return await self._until(look, None)
        except TimeoutError:
            if not limit.expired():
                raise
            return finished

    async def _until(
        self, look: Callable[[], Coroutine[Any, Any, tuple[Any, bool]]], timeout: float | None
    ) -> Any:
        """Repeat a check until it is satisfied or until the timeout; return its last result."""
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
