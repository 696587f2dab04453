"""Wakes a coroutine from any thread."""

from __future__ import annotations

import asyncio

__all__ = ["Wakeup"]


class Wakeup:
    """An event that one coroutine waits for and that any thread sets.

    Belongs to the event loop that was running when it was created: only coroutines of that loop may
    call :meth:`wait` and :meth:`clear`. Calls of :meth:`set` and :meth:`clear` must hold the same
    lock; otherwise a wakeup may be lost.
    """

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> bool:
        """Wake the waiter now or, if it is not waiting, when it next waits. Any thread.

        Returns:
            False if the waiter's loop is closed: the waiter will never run again.
        """
        future = self._future
        if asyncio._get_running_loop() is self._loop:  # pyright: ignore[reportPrivateUsage]
            _resolve(future)
            return True
        try:
            self._loop.call_soon_threadsafe(_resolve, future)
        except RuntimeError:
            return False
        return True

    def clear(self) -> None:
        """Reset the flag."""
        if self._future.done():
            self._future = self._loop.create_future()

    def is_set(self) -> bool:
        """Whether it was set and its event loop has noticed."""
        return self._future.done()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set.

        Args:
            timeout: Seconds; None waits without a limit.

        Returns:
            Whether it was set in time.
        """
        if not self._future.done():
            await asyncio.wait((self._future,), timeout=timeout)
        return self._future.done()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
