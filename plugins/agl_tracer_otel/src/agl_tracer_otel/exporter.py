"""The thread that sends spans to the store while agents run.

One event loop in one daemon thread serves every trace of the process, so that an agent that blocks
its own loop, or computes for minutes, does not delay its spans; in the store they also count as its
heartbeat. The thread runs while any tracer has a worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from opentelemetry import context as otel_context

# Keys that instrumentation libraries check before they create a span: the API's and the older one.
_SUPPRESSED: Final = ("suppress_instrumentation", otel_context._SUPPRESS_INSTRUMENTATION_KEY)  # pyright: ignore[reportPrivateUsage]  # fmt: skip


def silent_context() -> otel_context.Context:
    """Return an OpenTelemetry context for store calls: without a trace and without instrumentation.

    Otherwise an instrumented HTTP client would create spans for the calls that send spans.
    """
    context = otel_context.Context()
    for key in _SUPPRESSED:
        context = otel_context.set_value(key, True, context)
    return context


def _silent_execution() -> contextvars.Context:
    fresh = contextvars.Context()
    fresh.run(otel_context.attach, silent_context())
    return fresh


_LINGER: Final = 0.02  # seconds that an export without urgency waits for others to join


class Export(Protocol):
    """An object with spans to send to the store."""

    @property
    def closed(self) -> bool:
        """Whether all spans have been sent and no more will come."""
        ...

    async def drain(self) -> None:
        """Send the waiting spans to the store."""
        ...


class ExportLoop:
    """An event loop that exports can be started on from any thread.

    Args:
        loop: A running loop to use; None starts one in a daemon thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._lingering: list[Export] = []
        self._lingering_lock = threading.Lock()
        self._loop = loop or asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        if loop is None:
            self._thread = threading.Thread(target=self._run, name="agl-span-exporter", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            for task in self._tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def may_be_waited_for(self) -> bool:
        """Whether the calling thread may block until this loop has run a call.

        False on the loop's own thread and for a borrowed loop, which may run on the thread that
        would block.
        """
        thread = self._thread
        return thread is not None and thread.is_alive() and thread is not threading.current_thread()

    def start(self, export: Export, *, linger: bool) -> None:
        """Drain an export on the loop, outside of any trace. Any thread may call this.

        Does nothing after the loop has stopped: the flush at the end of the trace sends the spans.

        Args:
            export: The export to drain.
            linger: Wait a moment first, together with other such exports: waking the loop costs
                more than a span does.
        """
        if not linger:
            self._call(self._start, export)
            return
        with self._lingering_lock:
            self._lingering.append(export)
            is_first = len(self._lingering) == 1
        if is_first:
            self._call(self._loop.call_later, _LINGER, self._start_lingering)

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args, context=_silent_execution())
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _start_lingering(self) -> None:
        with self._lingering_lock:
            exports, self._lingering = self._lingering, []
        for export in exports:
            if not export.closed:
                self._start(export)

    def _start(self, export: Export) -> None:
        task = self._loop.create_task(export.drain())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Cancel running exports and end the thread, if the loop has its own."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


_lock = threading.Lock()
_shared: ExportLoop | None = None
_users = 0
_pid = 0


@contextmanager
def shared_export_loop() -> Generator[ExportLoop]:
    """Provide the process's export loop; its first user starts the thread, the last one ends it."""
    loop = _acquire()
    try:
        yield loop
    finally:
        _release()


def _acquire() -> ExportLoop:
    global _shared, _users, _pid
    with _lock:
        if _pid != os.getpid():  # a fork copies the variables but not the thread
            _shared, _users, _pid = None, 0, os.getpid()
        if _shared is None:
            _shared = ExportLoop()
        _users += 1
        return _shared


def _release() -> None:
    global _shared, _users
    with _lock:
        if _pid != os.getpid():
            return
        _users -= 1
        stopped, _shared = (None, _shared) if _users else (_shared, None)
    if stopped is not None:
        stopped.stop()
