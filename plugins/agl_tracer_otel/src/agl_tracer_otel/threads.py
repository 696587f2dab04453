"""Propagates an agent's trace into the threads that it starts.

Python gives a new thread an empty context, so spans of tools that an agent runs in its own threads
would not belong to its trace. While a tracer is in use, threads and the work of thread pools
inherit the trace in which they were started, as with OpenTelemetry's threading instrumentation.
They inherit only the trace, because other context variables (such as the running async library) are
wrong in a thread.

A thread belongs to that trace until it ends. Work that a later trace gives to such a thread, for
example through a queue or a ``multiprocessing.pool.ThreadPool``, is not recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as otel_context

from agl_core.tracer import activate, get_active_tracer
from agl_tracer_otel.overlapping import Overlapping
from agl_tracer_otel.processor import current_recording

_start = threading.Thread.start
_submit = ThreadPoolExecutor.submit


@contextmanager
def _patched() -> Generator[None]:
    global _start, _submit
    if threading.Thread.start is not _start_in_trace:
        _start = threading.Thread.start
        threading.Thread.start = _start_in_trace
    if ThreadPoolExecutor.submit is not _submit_in_trace:
        _submit = ThreadPoolExecutor.submit
        ThreadPoolExecutor.submit = _submit_in_trace
    yield
    # If other code has patched on top of us, our patch stays below it and only passes calls on.
    if threading.Thread.start is _start_in_trace:
        threading.Thread.start = _start
    if ThreadPoolExecutor.submit is _submit_in_trace:
        ThreadPoolExecutor.submit = _submit


traces_follow_threads = Overlapping(_patched)
"""Patches threads and thread pools of this process for a ``with`` block; blocks may overlap."""


def _start_in_trace(self: threading.Thread) -> None:
    if traces_follow_threads.active and current_recording() is not None:
        run = _in_this_trace(self.run)

        def run_once() -> None:
            del self.__dict__["run"]  # a reference cycle would keep the thread alive
            run()

        self.run = run_once
    _start(self)


def _submit_in_trace(
    self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Future[Any]:
    if not traces_follow_threads.active or current_recording() is None:
        return _submit(self, fn, *args, **kwargs)
    work = _in_this_trace(fn)
    # The pool may start a thread now, which outlives this trace and must not inherit it.
    outer = otel_context.get_current()
    otel_context.attach(otel_context.Context())
    try:
        return _submit(self, work, *args, **kwargs)
    finally:
        otel_context.attach(outer)


def _in_this_trace(function: Callable[..., Any]) -> Callable[..., Any]:
    tracer = get_active_tracer()
    context = otel_context.get_current()

    def run(*args: Any, **kwargs: Any) -> Any:
        outer = otel_context.get_current()
        otel_context.attach(context)
        try:
            with activate(tracer):
                return function(*args, **kwargs)
        finally:
            otel_context.attach(outer)

    return run
