"""Delivers events to one listener, in order, outside of the code that caused them.

A store call that causes an event must not wait for a webhook. So each listener has a mailbox: an
event is put into it, and a thread of the listener takes it out. The threads of ``async`` listeners
share one event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import multiprocessing
import multiprocessing.util
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final
from weakref import WeakSet

logger = logging.getLogger(__name__)

_FAR_BEHIND: Final = 10_000
"""Events in a mailbox at which a warning says that the listener is too slow. An event without a
trace takes about 1 kB, so 10 MB."""
_SECONDS_BETWEEN_LINES: Final = 5.0
"""Time between two lines in the log that say what a caller waits for."""

Deliver = Callable[[str, dict[str, Any]], None]


class Mailbox:
    """The events that one listener has not processed yet. Thread-safe.

    Putting an event in never waits. After a fork the child's mailbox is empty: the parent delivers
    what is in its own.

    Args:
        name: Name of the listener.
        deliver: Calls the listener; runs in the mailbox's thread, and in the context of the code
            that caused the event. It raises nothing.
    """

    def __init__(self, name: str, deliver: Deliver) -> None:
        self._name = name
        self._deliver = deliver
        self._renew()
        _mailboxes.add(self)

    def _renew(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[tuple[contextvars.Context, str, dict[str, Any]]] = deque()
        self._delivering = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._warned = False

    def put(self, event: str, parameters: dict[str, Any]) -> None:
        """Add an event; a closed mailbox takes none."""
        context = contextvars.copy_context()
        with self._changed:
            if self._closed:
                return  # the listener was removed while another thread sent the event
            self._events.append((context, event, parameters))
            if self._thread is None:
                _flush_at_exit_of_this_process()
                # A daemon: `drain` is what waits for it. A thread that Python itself waits for at
                # exit could not be interrupted.
                self._thread = threading.Thread(
                    target=self._serve, name=f"agl-listener-{self._name}", daemon=True
                )
                self._thread.start()
            elif not self._delivering:
                self._changed.notify_all()
            too_slow = len(self._events) >= _FAR_BEHIND and not self._warned
            self._warned = self._warned or too_slow
        if too_slow:
            logger.warning(
                "the listener %r is %d events behind; nothing is lost, and the end of the run will "
                "wait for it",
                self._name,
                _FAR_BEHIND,
            )

    def drain(self, deadline: float | None = None) -> bool:
        """Wait until the listener has processed every event; say so every five seconds.

        Returns at once in the mailbox's own thread: a listener may remove itself.

        Args:
            deadline: Monotonic time at which to stop waiting; None waits without limit.

        Returns:
            Whether every event was processed.
        """
        if threading.current_thread() is self._thread:
            return True
        next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        with self._changed:
            while self._events or self._delivering:
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    return False
                if now >= next_line:
                    next_line = now + _SECONDS_BETWEEN_LINES
                    logger.warning(
                        "waiting for the listener %r: %d events left", self._name, self.left
                    )
                self._changed.wait(min(next_line, deadline or next_line) - now)
        return True

    def close(self) -> None:
        """Process every event, then end the thread. Idempotent."""
        self.drain()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def left(self) -> int:
        """Number of events that are not processed yet."""
        return len(self._events) + self._delivering

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._delivering = False
                if not self._events:
                    self._changed.notify_all()  # a caller of drain() may wait
                while not self._events:
                    if self._closed:
                        return
                    self._changed.wait()
                context, event, parameters = self._events.popleft()
                self._delivering = True
            context.run(self._deliver, event, parameters)


def run_async(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine of a listener in the loop that all ``async`` listeners share, and wait.

    Raises:
        BaseException: The coroutine's error.
    """
    error = asyncio.run_coroutine_threadsafe(_error_of(coroutine), _loop()).result()
    if error is not None:
        raise error


async def _error_of(coroutine: Coroutine[Any, Any, object]) -> BaseException | None:
    """Await a coroutine and return its error: SystemExit of a task would end the shared loop."""
    try:
        await coroutine
    except BaseException as error:
        return error
    return None


def flush(timeout: float | None = None) -> bool:
    """Wait until all listeners of this process have processed every event that was sent.

    Args:
        timeout: Longest wait in seconds; None waits without limit.

    Returns:
        Whether they have.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    drained = [mailbox.drain(deadline) for mailbox in list(_mailboxes)]
    return all(drained)


def _flush_at_exit() -> None:
    """Wait for all listeners when the process ends; Ctrl+C gives up, and says what is lost."""
    try:
        flush()
    except KeyboardInterrupt:
        left = sum(mailbox.left for mailbox in list(_mailboxes))
        logger.warning("%d events were not delivered to listeners", left)


def _flush_at_exit_of_this_process() -> None:
    global _flushes_at_exit
    if _flushes_at_exit == (process := os.getpid()):
        return
    _flushes_at_exit = process
    if multiprocessing.parent_process() is None:
        atexit.register(_flush_at_exit)
    else:  # such a child calls no function of `atexit`; a priority makes it call this one
        multiprocessing.util.Finalize(None, _flush_at_exit, exitpriority=0)


_mailboxes: Final[WeakSet[Mailbox]] = WeakSet()
_flushes_at_exit = 0
"""The process that will flush at its end; a forked child is another one."""
_shared_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    global _shared_loop
    with _loop_lock:
        if _shared_loop is None:
            _shared_loop = asyncio.new_event_loop()
            threading.Thread(
                target=_shared_loop.run_forever, name="agl-listeners", daemon=True
            ).start()
        return _shared_loop


def _renew_after_fork() -> None:
    global _shared_loop, _loop_lock
    _shared_loop, _loop_lock = None, threading.Lock()
    for mailbox in _mailboxes:
        mailbox._renew()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)
