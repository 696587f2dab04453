"""A worker's heartbeat: shows the store that the worker is alive, and passes the reply on.

In mode ``"thread"`` a thread with its own event loop sends the beats, so that an async agent that
blocks its loop does not make the worker look dead; in mode ``"asyncio"`` a task on the agent's loop
sends them. In both modes the snapshot of the machine is taken in a thread; while a snapshot hangs
(a dead network disk), beats are sent without one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from agl_core.status import RUNNING_ATTEMPTS
from agl_core.store import UNSET
from agl_core.sync_calls import Outcome, SyncCalls
from agl_runner.config import HeartbeatMode
from agl_runner.snapshot import system_snapshot

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import Worker

logger = logging.getLogger(__name__)


_MIN_PERIOD = 0.01
"""Seconds: jitter may be as large as the period."""
_STOP_PATIENCE = 2.0
"""Seconds: a last heartbeat that hangs does not keep a runner from its end."""


def jittered(period: float, jitter: float) -> float:
    """Return ``period`` ± up to ``jitter``, in seconds, at least 0.01."""
    return max(_MIN_PERIOD, period + random.uniform(-jitter, jitter))


class Heartbeat:
    """Sends heartbeats while at least one holder needs them; not thread-safe.

    Args:
        store: Destination of the beats. A store that is not thread-safe gets them from the event
            loop also in mode ``"thread"``.
        worker_id: The worker's id in the store.
        on_reply: Called on the holder's loop with the store's record of the worker, after each
            beat.
        interval: Seconds between beats, and the longest duration of one; 0 or less: no beats.
        jitter: Largest random change of a period, in seconds.
        mode: ``"thread"`` or ``"asyncio"``; see above.
        include_gpu: Whether snapshots list GPUs.
        attempts: Returns the ids of the attempts that the worker runs, which each beat lists; None
            if it runs one at a time, which the store's record of the worker names.
    """

    def __init__(
        self,
        store: LightningStore,
        worker_id: str,
        on_reply: Callable[[Worker], None],
        *,
        interval: float,
        jitter: float,
        mode: HeartbeatMode,
        include_gpu: bool,
        attempts: Callable[[], list[str]] | None = None,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._on_reply = on_reply
        self._interval = interval
        self._jitter = jitter
        self._in_thread = mode == "thread" and bool(store.capabilities.get("thread_safe"))
        self._include_gpu = include_gpu
        self._attempts = attempts
        self._snapshots = SyncCalls(f"agl-snapshot-{worker_id}")
        self._pending: asyncio.Future[Outcome] | None = None
        self._holders = 0
        self._start: asyncio.TimerHandle | None = None
        self._beating: _LoopThread | asyncio.Task[None] | None = None

    def hold(self, *, after: float = 0.0) -> None:
        """Start the beats after ``after`` seconds; they continue until the last release."""
        self._holders += 1
        if self._holders == 1 and self._interval > 0:
            self._start = asyncio.get_running_loop().call_later(after, self._launch)

    async def release(self) -> None:
        """Release one hold; the last one stops the beats, waiting up to 2 s for a running beat."""
        self._holders -= 1
        if self._holders:
            return
        if self._start is not None:
            self._start.cancel()
            self._start = None
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            ended = beating if isinstance(beating, asyncio.Task) else beating.ended
            await asyncio.wait((ended,), timeout=_STOP_PATIENCE)

    async def announce(self) -> None:
        """Record in the store, before the first claim, that beats will list the attempts."""
        try:
            await self._store.update_worker(self._worker_id, heartbeat_stats={RUNNING_ATTEMPTS: []})
        except Exception as error:
            logger.warning("%s: a heartbeat failed: %r", self._worker_id, error)

    def close(self) -> None:
        """End the snapshot thread."""
        self._snapshots.close()

    def _launch(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._in_thread:
            self._beating = loop.create_task(self._beat_on(self._on_reply))
            return

        def reply(worker: Worker) -> None:
            loop.call_soon_threadsafe(self._on_reply, worker)

        self._beating = _LoopThread(
            f"agl-heartbeat-{self._worker_id}", lambda: self._beat_on(reply)
        )

    async def _beat_on(self, reply: Callable[[Worker], None]) -> None:
        self._pending = None
        while True:
            await self._beat(reply)
            await asyncio.sleep(jittered(self._interval, self._jitter))

    async def _beat(self, reply: Callable[[Worker], None]) -> None:
        try:
            stats = await self._snapshot()
            if self._attempts is not None:
                stats = {**(stats or {}), RUNNING_ATTEMPTS: self._attempts()}
            async with asyncio.timeout(self._interval):
                worker = await self._store.update_worker(
                    self._worker_id, heartbeat_stats=UNSET if stats is None else stats
                )
            reply(worker)
        except Exception as error:
            logger.warning("%s: a heartbeat failed: %r", self._worker_id, error)

    async def _snapshot(self) -> dict[str, Any] | None:
        pending = self._pending or self._snapshots.submit(
            lambda: system_snapshot(include_gpu=self._include_gpu)
        )
        done, _ = await asyncio.wait((pending,), timeout=self._interval)
        # The next beat waits for a hanging snapshot instead of starting a second one.
        self._pending = None if done else pending
        if not done:
            logger.warning("%s: the machine's snapshot takes too long", self._worker_id)
            return None
        value, error = pending.result()
        if error is not None:
            logger.warning("%s: no snapshot of the machine: %r", self._worker_id, error)
        return value


class _LoopThread:
    """A daemon thread whose event loop runs one coroutine until it is cancelled."""

    def __init__(self, name: str, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._owner = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._owner.create_future()
        self._lock = threading.Lock()
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        thread = threading.Thread(target=self._serve, args=(make,), name=name, daemon=True)
        thread.start()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._task is not None:
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def _serve(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            asyncio.run(self._main(make))
        finally:
            try:
                self._owner.call_soon_threadsafe(self._end)
            except RuntimeError:
                logger.debug("a heartbeat outlived the event loop it belonged to")

    async def _main(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._lock:
            if self._cancelled:
                return
            task = self._task = asyncio.get_running_loop().create_task(make())
        await asyncio.wait((task,))
        with self._lock:
            self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a heartbeat thread died", exc_info=error)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
