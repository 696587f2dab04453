"""The stop event within a process; it implements :class:`~agl_core.types.ExecutionEvent`."""

from __future__ import annotations

import threading

from agl_core.wakeup import Wakeup


class ThreadingEvent:
    """An event for the threads of one process and the event loops in them."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: set[Wakeup] = set()

    def set(self) -> None:
        with self._lock:
            self._event.set()
            for waiter in self._waiters:
                waiter.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._event.wait(timeout)

    async def wait_async(self) -> None:
        waiter = Wakeup()
        with self._lock:
            if self._event.is_set():
                return
            self._waiters.add(waiter)
        try:
            await waiter.wait()
        finally:
            with self._lock:
                self._waiters.discard(waiter)
