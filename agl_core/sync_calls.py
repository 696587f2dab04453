"""Runs sync code off the event loop, in threads that may be abandoned.

A hung call must not block the loop, the interpreter's exit, or the next call. The threads of an
executor are joined at exit; these are daemons, and an abandoned call keeps its thread until it
returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

from agl_core.main_thread import MainThread

__all__ = ["Outcome", "SyncCalls", "end_if_forked"]

logger = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """Result or error of a call.

    The error is a value, because asyncio would treat an agent's KeyboardInterrupt or
    CancelledError raised in a task as its own.
    """

    value: Any = None
    error: BaseException | None = None


class _Job(NamedTuple):
    call: Callable[[], Any]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Outcome]


_Inbox = SimpleQueue[_Job | None]


class SyncCalls:
    """Reusable threads for sync calls; as many as calls run concurrently.

    Thread-safe.

    Args:
        name: Name of the threads.
        in_main_thread: Make the calls in the main thread of a process that offers it
            (:func:`~agl_core.main_thread.run_beside_main_thread`), one at a time.
    """

    def __init__(self, name: str, *, in_main_thread: bool = False) -> None:
        self._name = name
        self._in_main_thread = in_main_thread
        self._lock = threading.Lock()
        self._idle: list[_Inbox] = []
        self._closed = False

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Outcome]:
        """Start a call in the caller's context; the future's result is its outcome.

        Cancelling the future leaves the call running and drops its outcome.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        if self._in_main_thread and (main := MainThread.current) is not None:
            _submit(_Job(call, contextvars.copy_context(), loop, future), main)
            return future
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = _Inbox()
            threading.Thread(
                target=self._serve, args=(inbox,), name=self._name, daemon=True
            ).start()
        inbox.put(_Job(call, contextvars.copy_context(), loop, future))
        return future

    def close(self) -> None:
        """End the idle threads now and the busy ones after their calls. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _serve(self, inbox: _Inbox) -> None:
        while (job := inbox.get()) is not None:
            outcome = _outcome(job)
            with self._lock:
                closed = self._closed
                if not closed:
                    # Before the outcome is set, so that a call made in reaction reuses this thread.
                    self._idle.append(inbox)
            _report(job, outcome)
            del job, outcome  # otherwise the last call's objects live until the next call
            if closed:
                return


def _submit(job: _Job, main: MainThread) -> None:
    def call() -> None:
        if not job.future.cancelled():  # while it waited for its turn
            _report(job, _outcome(job))

    def interrupt(future: asyncio.Future[Outcome]) -> None:
        if future.cancelled():
            main.interrupt(call)

    job.future.add_done_callback(interrupt)
    main.submit(call)


def _report(job: _Job, outcome: Outcome) -> None:
    try:
        job.loop.call_soon_threadsafe(_settle, job.future, outcome)
    except RuntimeError:
        logger.debug("dropped the outcome of a call whose event loop is closed")


def _outcome(job: _Job) -> Outcome:
    pid = os.getpid()
    try:
        outcome = Outcome(job.context.run(job.call))
    except BaseException as error:
        outcome = Outcome(error=error)
    end_if_forked(pid, outcome)
    return outcome


def _settle(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
    elif outcome.error is not None:
        logger.debug("an abandoned call ended with %r", outcome.error)


def end_if_forked(pid: int, outcome: Outcome) -> None:
    """End this process if it is not the one that called the agent.

    A child of ``os.fork`` is a copy of the runner with one thread. If it returned into the runner's
    code, it would write results of its own, or wait for work that never comes. Its
    exit code is that of a program whose main part the agent is: that of ``sys.exit``, else 1 after
    an error, else 0.

    Args:
        pid: The process that called the agent.
        outcome: The agent's result or error in this process.
    """
    if os.getpid() == pid:
        return
    error = outcome.error
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Not sys.exit: the thread is not the main one, and exit functions belong to the parent.
    os._exit(code if isinstance(code, int) else 0)
