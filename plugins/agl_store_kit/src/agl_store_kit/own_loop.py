"""An event loop of a store's own, in a thread, in which all calls of its database client run.

An async client belongs to one event loop, and a store does not: agents in worker threads and
successive ``asyncio.run`` calls all use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]
Undo = Callable[[T], Coroutine[Any, Any, object]]


class OwnLoop:
    """An event loop that runs in a thread until it is closed. Thread-safe, not fork-safe.

    Args:
        name: Name of the thread.
        closed_error: Returns the error of calls after the end.

    Attributes:
        pid: The process that the loop runs in.
    """

    def __init__(self, name: str, closed_error: Callable[[], Exception]) -> None:
        self.pid = os.getpid()
        self._closed_error = closed_error
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unanswered: set[Callable[[], None]] = set()
        """What fails the calls that have no answer yet; any thread adds and removes."""
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Work[T]) -> T:
        """Run a coroutine in the loop and wait for it, without an event loop of the caller's."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the loop; do nothing if the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    async def call(self, work: Work[T], *, undo: Undo[T] | None = None) -> T:
        """Run a coroutine in the loop and return its result.

        It runs to its end if the caller is cancelled: a write that has begun may be stored already.

        Args:
            work: Returns the coroutine.
            undo: Takes back a result whose caller was cancelled.

        Raises:
            Exception: Any error of the coroutine, and ``closed_error`` after :meth:`close`.
        """
        if self._closed:
            raise self._closed_error()
        caller = asyncio.get_running_loop()
        answer: asyncio.Future[T] = caller.create_future()

        def take_back(result: T) -> None:
            if undo is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._start(undo(result))

        def hand_over(result: T | None, error: BaseException | None) -> None:
            """Runs in the caller's loop."""
            if answer.done():
                if error is None:
                    take_back(cast("T", result))
            elif error is None:
                answer.set_result(cast("T", result))
            else:
                answer.set_exception(error)

        def refuse() -> None:
            """The loop was closed before it began the work, or ended it."""
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed, too
                caller.call_soon_threadsafe(hand_over, None, self._closed_error())

        async def run() -> None:
            result: T | None = None
            failure: BaseException | None = None
            try:
                result = await work()
            except asyncio.CancelledError:
                failure = self._closed_error()
            except Exception as error:
                failure = error
            self._unanswered.discard(refuse)
            try:
                caller.call_soon_threadsafe(hand_over, result, failure)
            except RuntimeError:  # the caller's loop is closed: the result has no receiver
                if failure is None:
                    take_back(cast("T", result))

        self._unanswered.add(refuse)
        try:
            self._start(run())
        except RuntimeError:  # closed since the check above
            self._unanswered.discard(refuse)
            raise self._closed_error() from None
        try:
            return await answer
        except asyncio.CancelledError:
            # A cancellation can come after the result and before this coroutine goes on.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                take_back(answer.result())
            raise

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a coroutine in the loop; any thread."""

        def start() -> None:
            task = self._loop.create_task(work)
            self._tasks.add(task)  # the loop itself keeps only weak references
            task.add_done_callback(self._tasks.discard)

        try:
            self._loop.call_soon_threadsafe(start)
        except RuntimeError:
            work.close()
            raise

    # -- end -------------------------------------------------------------------------------------

    async def close(self, finish: Work[None], disconnect: Work[None]) -> None:
        """End the loop; calls under way fail. Idempotent; any thread.

        Args:
            finish: Runs in the loop first, for what should still reach the server.
            disconnect: Runs in the loop when the calls under way have ended.
        """
        if self._closed:
            return
        self._closed = True
        ending = asyncio.run_coroutine_threadsafe(self._end(finish, disconnect), self._loop)
        await asyncio.wrap_future(ending)
        self.stop()

    async def _end(self, finish: Work[None], disconnect: Work[None]) -> None:
        await finish()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await disconnect()
        await self._loop.shutdown_default_executor()  # it looked up the servers' names

    def stop(self) -> None:
        """End the loop as it is, for example if the connection was never made."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        # A call may have come between the last look at the tasks and the end of the loop.
        for refuse in list(self._unanswered):
            refuse()
