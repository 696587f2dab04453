"""Ctrl+C during a run in threads: the first press stops the run, a second one hurries its end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Self


class CtrlC:
    """Handles SIGINT for a ``with`` block, so that no press is lost and none escapes.

    A KeyboardInterrupt can be raised at any instruction, so it also interrupts the code that
    handles the one before. Therefore a press raises one only while :meth:`lead` may block, and not
    again on the way out. All presses are counted.

    Changes nothing outside the main thread, or where the program has its own handler of SIGINT.

    Attributes:
        presses: Number of presses.
        notices: Gets an item at each press; others may put theirs to be waited for together.
            Python's one queue that a signal handler may use: its ``put`` is reentrant.
    """

    def __init__(self) -> None:
        self.presses = 0
        self.notices: SimpleQueue[None] = SimpleQueue()
        self._raises = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        # The same condition as in asyncio.run(), which leaves this handler in place.
        self._handles = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._handles:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Await ``work()``, the work of the main thread. The first press cancels it.

        That is what ``asyncio.run`` does by itself. A second press raises KeyboardInterrupt in the
        main thread, whose loop may be blocked.
        """
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            await work()
        finally:
            self._task = None
            self._raises = True  # asyncio waits for its threads next, which may hang

    def raise_no_more(self) -> None:
        """From now on only count presses."""
        self._raises = False

    def count(self) -> None:
        """Count a press."""
        self.presses += 1
        self.notices.put(None)

    def _on_signal(self, *_: object) -> None:
        self.count()
        if self.presses == 1 and self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        elif self._raises:
            self._raises = False
            raise KeyboardInterrupt
