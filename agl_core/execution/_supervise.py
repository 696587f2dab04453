"""Runs one bundle to its end: a grace period after the stop event, then cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue

from agl_core.execution._events import ThreadingEvent
from agl_core.types import ExecutionEvent

_SHORTEST_GRACE = 0.05  # seconds between two cancellations, at least
_SLEEP = 1.0  # seconds at most: until it wakes, a loop misses a Ctrl+C from just before its sleep


async def supervise(
    work: Callable[[], Awaitable[None]],
    stop: ExecutionEvent,
    grace: float,
    hurry: ExecutionEvent | None = None,
) -> None:
    """Await ``work()``; once the stop event is set it has a grace period, then it is cancelled.

    It is cancelled like any asyncio task, so clean-up may await; work that continues is cancelled
    again after each further grace period. Returns normally if the cancellation ends the work.

    Args:
        work: Creates the awaitable, in the loop that runs it.
        stop: Event that requests the end of the work.
        grace: Seconds between the stop event and the cancellation.
        hurry: Ends the grace period early, if there is one.

    Raises:
        Exception: The error of the work.
        CancelledError: The caller was cancelled; the event is set, and the work has ended.
    """
    task = asyncio.ensure_future(work())
    stopped = asyncio.ensure_future(stop.wait_async())
    hurried = asyncio.ensure_future((hurry or ThreadingEvent()).wait_async())
    try:
        while not (task.done() or stopped.done()):
            await asyncio.wait((task, stopped), timeout=_SLEEP, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait((task, hurried), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        ended_by_itself = task.done()
    except asyncio.CancelledError:
        stop.set()  # Ctrl+C: stop the other bundles now, not after this one's clean-up
        raise
    finally:
        stopped.cancel()
        hurried.cancel()
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=max(grace, _SHORTEST_GRACE))
        if not task.cancelled():
            task.exception()  # marks it as retrieved, or asyncio logs it as unhandled
    if ended_by_itself or not task.cancelled():
        await task


class BundleThread(threading.Thread):
    """A bundle in a daemon thread with its own event loop.

    An error of the bundle is kept in :attr:`error` and sets the stop event.

    Args:
        name: Name of the thread.
        work: Creates the bundle's awaitable.
        stop: The stop event of the run.
        grace: Seconds between the stop event and the cancellation.
        hurry: Ends the grace period early.
        notices: Gets an item when the bundle has ended.
        ends_run: Whether the run ends when this bundle returns.

    Attributes:
        error: The error of the bundle, if any.
        has_ended: Whether the bundle has ended; the thread ends at once after it.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        stop: ExecutionEvent,
        *,
        grace: float,
        hurry: ExecutionEvent,
        notices: SimpleQueue[None],
        ends_run: bool = False,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.error: BaseException | None = None
        self.has_ended = False
        self._work = work
        self._stop_event = stop
        self._grace = grace
        self._hurry = hurry
        self._notices = notices
        self._ends_run = ends_run

    def run(self) -> None:
        try:
            asyncio.run(supervise(self._work, self._stop_event, self._grace, self._hurry))
        except BaseException as error:
            self.error = error  # the main thread raises it
        finally:
            if self.error is not None or self._ends_run:
                self._stop_event.set()
            self.has_ended = True
            self._notices.put(None)
