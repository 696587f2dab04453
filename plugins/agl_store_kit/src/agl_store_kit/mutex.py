"""A lock for coroutines of several event loops in several threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from agl_core.wakeup import Wakeup


class CrossLoopLock:
    """A fair, non-re-entrant lock that is awaited and never blocks a thread.

    Use as ``async with lock``. Coroutines of one loop and of different loops share one queue.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._queue: deque[Wakeup] = deque()

    async def __aenter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            turn = Wakeup()
            self._queue.append(turn)
        try:
            await turn.wait()
        except asyncio.CancelledError:
            with self._guard:
                if turn in self._queue:
                    self._queue.remove(turn)
                else:  # the lock was handed over just before the cancellation
                    self._hand_over()
            raise

    async def __aexit__(self, *_: object) -> None:
        with self._guard:
            self._hand_over()

    def _hand_over(self) -> None:
        while self._queue:
            if self._queue.popleft().set():
                return
        self._held = False
