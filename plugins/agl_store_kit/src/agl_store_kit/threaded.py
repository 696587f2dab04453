"""Makes any store usable from several threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from agl_core.store import (
    SYNC_CALLS,
    InterceptedStore,
    Interceptor,
    LightningStore,
    Method,
    Next,
    StoreCall,
)
from agl_core.types import AttemptedRollout, Rollout
from agl_core.wakeup import Wakeup
from agl_store_kit.mutex import CrossLoopLock

_LOOK_AGAIN: Final = 1.0
"""Seconds after which a waiting call checks again although no other call was made: the inner
store's watchdog may have changed a rollout."""
_READS: Final = (
    "query_",
    "get_rollout",
    "get_latest",
    "get_resources",
    "get_worker",
    "statistics",
    "now",
)
"""First parts of the names of methods that change nothing."""
_WAITING: Final = ("dequeue_rollout", "dequeue_many_rollouts", "wait_for_rollouts")
"""Methods that may wait: their calls are repeated until they are satisfied."""


class OneCallAtATime(Interceptor):
    """Lets one call at a time into a store that is not thread-safe, without blocking a thread.

    A call that waits for work or rollouts does not block the others. It belongs next to the store,
    so that no other interceptor runs inside the lock.

    Args:
        safe: Whether the store is thread-safe. Its calls then pass unchanged.
    """

    def __init__(self, *, safe: bool = False) -> None:
        self.safe = safe
        self.watches = ("capabilities",) if safe else None
        self._lock = CrossLoopLock()
        self._guard = threading.Lock()
        self._waiting: dict[Wakeup, None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _guard_of, (self.safe,)

    def around_sync(self, call: StoreCall, next: Next) -> Any:
        if call.name == "capabilities":
            return {**next(call), "thread_safe": True, "async_safe": True}
        if call.name == "draw_span_sequence_id":
            return None  # a draw would wait for the call that is inside
        return next(call)

    def wrap(self, name: str, method: Method, next: Next) -> Method:
        if name in SYNC_CALLS or name in _WAITING:
            return super().wrap(name, method, next)
        changes = not name.startswith(_READS)

        async def call(*args: Any, **kwargs: Any) -> Any:
            async with self._lock:
                result = await method(*args, **kwargs)
            if changes:
                with self._guard:
                    for wakeup in self._waiting:
                        wakeup.set()
            return result

        return call

    async def around(self, call: StoreCall, next: Next) -> Any:
        if call.name == "wait_for_rollouts":
            return await self._wait_for_rollouts(call, next)
        if call.name == "dequeue_many_rollouts":
            return await self._claim(call, next)
        # dequeue_rollout, which is a claim of at most one: so there is one way to wait.
        given = {name: call.argument(name) for name in ("worker_id", "wait")}
        one = StoreCall.of("dequeue_many_rollouts", limit=1, **given)
        claimed = await self._claim(one, next)
        return claimed[0] if claimed else None

    async def _look(self, call: StoreCall, next: Next) -> Any:
        """Make a call of those that wait; it wakes no other, or two would do so for ever."""
        async with self._lock:
            return await next(call)

    async def _claim(self, call: StoreCall, next: Next) -> Sequence[AttemptedRollout]:
        # Not cancelled at its limit, which may pass while another call is inside: a cancelled
        # claim could be lost.
        wait: float = call.argument("wait")
        if wait <= 0 or call.argument("limit") <= 0:
            return await self._look(call, next)
        once = call.replace(wait=0.0)

        async def claim() -> tuple[Sequence[AttemptedRollout], bool]:
            claimed = await self._look(once, next)
            return claimed, bool(claimed)

        return await self._until(claim, wait)

    async def _wait_for_rollouts(self, call: StoreCall, next: Next) -> Sequence[Rollout]:
        timeout: float | None = call.argument("timeout")
        if timeout is not None and timeout <= 0:
            return await self._look(call, next)
        once = call.replace(timeout=0)
        finished: Sequence[Rollout] = []

        async def look() -> tuple[Sequence[Rollout], bool]:
            nonlocal finished
            finished = await self._look(once, next)
            return finished, {item.rollout_id for item in finished} == known

        limit = asyncio.timeout(timeout)  # holds also while another call keeps the store busy
        try:
            async with limit:
                ids = call.argument("rollout_ids")
                query = StoreCall.of("query_rollouts", rollout_id_in=ids)
                known = {item.rollout_id for item in await self._look(query, next)}
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


def _guard_of(safe: bool) -> OneCallAtATime:
    return OneCallAtATime(safe=safe)


class LightningStoreThreaded(InterceptedStore):
    """Makes a store usable from several threads, each with its own event loop.

    A store that is thread-safe itself is called directly. Any other gets one call at a time; see
    :class:`OneCallAtATime`.

    Args:
        store: The store to call.
    """

    def __init__(self, store: LightningStore) -> None:
        guard = OneCallAtATime(safe=bool(store.capabilities.get("thread_safe")))
        super().__init__(store, innermost=(guard,))
