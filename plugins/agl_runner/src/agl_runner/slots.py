"""The attempts that a runner runs at the same time."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

_PATIENCE: Final = 1.0  # seconds without a turn of the loop, after which an agent blocks it


class Slots:
    """Runs coroutines as tasks, up to a number at a time.

    Used on one event loop.

    Args:
        number: Largest number of tasks at a time.
        failed: Completed when a task raises; the error is in :attr:`error`.

    Attributes:
        error: The first error that a task raised.
    """

    def __init__(self, number: int, failed: asyncio.Future[None]) -> None:
        self.error: BaseException | None = None
        self._number = number
        self._failed = failed
        self._tasks: set[asyncio.Task[BaseException | None]] = set()
        self._changed = asyncio.Event()

    async def free(self) -> int:
        """Return the number of free slots; wait while there is none."""
        while len(self._tasks) >= self._number:
            self._changed.clear()
            await self._changed.wait()
        return self._number - len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a free slot."""
        task = asyncio.create_task(_contained(work))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[BaseException | None]) -> None:
        self._tasks.discard(task)
        self._changed.set()
        error = None if task.cancelled() else task.result()
        if error is not None:
            self.error = self.error or error
            if not self._failed.done():
                self._failed.set_result(None)

    async def drain(self) -> None:
        """Wait for all tasks. A cancellation is passed on to them, and they are waited for."""
        cancelled: asyncio.CancelledError | None = None
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as error:
                cancelled = error
                self.cancel()
        if cancelled is not None:
            raise cancelled

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()


async def _contained(work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Return an error as a value: a task that raises KeyboardInterrupt stops its event loop."""
    try:
        await work
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return error
    return None


class LoopWatch:
    """Logs one line per place where an agent's code blocks the event loop that attempts share.

    A daemon thread asks the loop for a turn once a second. If the turn takes longer than a second,
    the thread reads the loop's stack.

    Args:
        worker_id: The worker's id in the store.
        concurrency: Number of rollouts that share the loop.
    """

    def __init__(self, worker_id: str, concurrency: int) -> None:
        self._worker_id = worker_id
        self._concurrency = concurrency
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._stopped = threading.Event()
        self._told: set[tuple[str, int]] = set()
        threading.Thread(target=self._watch, name="agl-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread; does not wait for it."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(_PATIENCE):
            turn = threading.Event()
            try:
                self._loop.call_soon_threadsafe(turn.set)
            except RuntimeError:
                return  # the loop is closed
            while not turn.wait(_PATIENCE) and not self._stopped.is_set():
                self._tell()

    def _tell(self) -> None:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented
        frame = frames.get(self._thread_id)
        while frame is not None and _is_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place in self._told:
            return
        self._told.add(place)
        logger.warning(
            "%s: %s (%s:%d) blocks the event loop for more than %g s; the up to %d rollouts of "
            "this runner wait meanwhile: await something, use asyncio.to_thread, or write a sync "
            "agent",
            self._worker_id,
            frame.f_code.co_qualname,
            *place,
            _PATIENCE,
            self._concurrency,
        )


_STANDARD_LIBRARY: Final = f"{Path(os.__file__).parent}{os.sep}"


def _is_library(filename: str) -> bool:
    """Return whether a file is not the agent's, as far as its path shows."""
    installed = f"{os.sep}site-packages{os.sep}" in filename
    return installed or filename.startswith((_STANDARD_LIBRARY, "<frozen"))
