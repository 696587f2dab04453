"""One open trace: the spans of an attempt on their way to the store.

Spans end on the agent's threads, which only append them to a queue; the slow work happens
elsewhere. While the agent runs, the export loop sends all waiting spans as one batch, so a span is
a prompt heartbeat. Sequence ids must follow the order of events, also among the spans that a proxy
writes. A store that can assign an id without I/O does so when the span ends; for any other store
the export starts as soon as a span has ended, so that the span has its sequence id before the
agent's next model call. When the trace context is left, the owner submits the remaining spans,
usually none or one batch, on its own thread.

There is one submitter at a time, so spans are stored in the order in which they ended. A failed
batch is kept and sent again; the store skips the spans that it already has.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

from agl_core import semconv
from agl_core.errors import StoreFullError, StoreUnavailableError
from agl_core.otel import to_span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from agl_core.store import LightningStore
    from agl_core.tracer import Tracer
    from agl_core.types import Span
    from agl_tracer_otel.call_writer import CallWriter
    from agl_tracer_otel.exporter import ExportLoop

_logger = logging.getLogger(__name__)

_LOCAL_ROLLOUT: Final = "rollout-dummy"
_LOCAL_ATTEMPT: Final = "attempt-dummy"
_MAX_BATCH: Final = 256
"""Spans per call of the store: a call's fixed cost is small beside them."""
_RETRY_DELAYS: Final = (0.1, 0.2, 0.5, 1.0, 2.0)  # seconds; the last one repeats
_RETRIED: Final = (StoreUnavailableError, StoreFullError, OSError, TimeoutError)


class TraceRecording:
    """The spans of one trace context. Thread-safe.

    Args:
        store: Destination of the spans; None keeps them here.
        rollout_id: Rollout that the spans belong to.
        attempt_id: Attempt that the spans belong to.
        export_loop: Event loop that submits spans while the trace is open.
        trace_id: Trace id of the spans that have no parent.
        max_buffered: Largest number of spans that wait for the store; beyond it the agent waits.
        max_wait: Longest wait of the agent for room for one span, in seconds; then the trace is
            given up.
        call_writer: Describes the model calls of client libraries; None: they are not recorded.
        tracer: The tracer that opened the trace.

    Attributes:
        unfinished: Functions that end the spans of responses that the agent has not read to their
            end; called when the trace closes.
    """

    def __init__(
        self,
        *,
        store: LightningStore | None,
        rollout_id: str | None,
        attempt_id: str | None,
        export_loop: ExportLoop | None,
        trace_id: int,
        max_buffered: int,
        max_wait: float,
        call_writer: CallWriter | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.trace_id: Final = trace_id
        self.call_writer: Final = call_writer
        self.tracer: Final = tracer
        self.unfinished: set[Callable[[], None]] = set()
        self._store = store
        self._rollout_id = rollout_id or _LOCAL_ROLLOUT
        self._attempt_id = attempt_id or _LOCAL_ATTEMPT
        self._routing = {
            semconv.ROLLOUT_ID: self._rollout_id,
            semconv.ATTEMPT_ID: self._attempt_id,
        }
        self._export_loop = export_loop
        self._max_buffered = max_buffered
        self._max_wait = max_wait

        self._open: dict[int, str] = {}  # spans that have started, by span id
        # Spans that have ended and are not converted yet, each with its sequence id or None.
        self._ended: deque[tuple[ReadableSpan, int | None]] = deque()
        self._spans: list[Span] = []  # converted spans, in order
        self._unsent: deque[Span] = deque()  # the last of them, which are not stored yet
        self._numbered = 0  # how many of the unsent have their final sequence id
        self._last_id = 0 if store else -1
        self._convert_lock = threading.Lock()

        self._drain_started = False
        self._submitter: int | None = None  # the thread that submits
        self._submit_waiters: list[concurrent.futures.Future[None]] = []
        self._submit_lock = threading.Lock()

        self._room = threading.Condition()
        self._failure: Exception | None = None
        self._lost = 0
        self.closed = False
        self._late = False

    # -- on the agent's threads ------------------------------------------------------------------

    def span_started(self, span_id: int, name: str) -> bool:
        """Record that a span has started; False if the trace has closed and accepts no more."""
        if self.closed:
            if not self._late:
                self._late = True
                _logger.warning(
                    "span %r and what follows it is not recorded: it started after the trace of "
                    "attempt %s had closed, in a task or thread that was started in that trace",
                    name,
                    self._attempt_id,
                )
            return False
        self._open[span_id] = name
        return True

    def span_ended(self, span_id: int, span: ReadableSpan) -> None:
        """Add a span that has ended. Waits only while the buffer is full, and not with a reward."""
        self._open.pop(span_id, None)
        if self.closed:
            return
        if self._failure is not None:
            self._lost += 1
            return
        number = None
        if self._store is not None:
            number = self._store.draw_span_sequence_id(self._rollout_id, self._attempt_id)
        self._ended.append((span, number))
        if self._export_loop is None:
            return
        if not self._drain_started:
            self._drain_started = True
            self._export_loop.start(self, linger=number is not None)
        too_many = len(self._ended) + len(self._unsent) > self._max_buffered
        # Rewards are few and small, and the agent must not wait to emit one.
        if too_many and span.name != semconv.SPAN_ANNOTATION:
            self._wait_for_room(self._export_loop)

    def _wait_for_room(self, export_loop: ExportLoop) -> None:
        if not export_loop.may_be_waited_for():
            return
        if self._submitter == threading.get_ident():
            return  # a flush on this thread's loop makes the room, and could not while it waits
        with self._room:
            made = self._room.wait_for(self._has_room, timeout=self._max_wait)
        if not made:
            self._fail(
                StoreUnavailableError(
                    f"the store accepted no span of attempt {self._attempt_id} for "
                    f"{self._max_wait:g} s, with {self._max_buffered} of them waiting"
                )
            )

    def _has_room(self) -> bool:
        waiting = len(self._ended) + len(self._unsent)
        return waiting <= self._max_buffered or self._failure is not None

    # -- reading ---------------------------------------------------------------------------------

    def spans(self) -> list[Span]:
        """Return every span that has ended, in that order.

        Spans that are not stored yet are copies with the sequence ids that they get unless another
        writer draws ids first.
        """
        self._convert()
        with self._convert_lock:
            stored = len(self._spans) - len(self._unsent)
            waiting = [span.model_copy(deep=True) for span in self._unsent]
            for index, span in enumerate(waiting[self._numbered :], 1):
                span.sequence_id = self._last_id + index
            return self._spans[:stored] + waiting

    def _convert(self) -> None:
        with self._convert_lock:
            while self._ended:
                readable, number = self._ended.popleft()
                if number is not None:
                    self._last_id = number
                    self._numbered += 1
                elif self._store is None:
                    self._last_id += 1
                span = to_span(readable, self._rollout_id, self._attempt_id, self._last_id)
                self._spans.append(span)
                if self._store is not None:
                    # As in version 0.3, whose exporter assigns spans by their resource.
                    span.resource.attributes |= self._routing
                    self._unsent.append(span)

    # -- submitting ------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Return when every span that has ended is in the store; retries without a limit.

        Raises:
            StoreUnavailableError: The trace was given up.
            Exception: An error of the store for which a retry would not help.
        """
        if self._store is not None:
            await self._submit_until_done(self._store, abandon=False)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Flush, and accept no more spans."""
        for end in list(self.unfinished):
            end()
        try:
            await self.flush()
        finally:
            self.closed = True
            if self._open:
                _logger.warning(
                    "%d spans of attempt %s had not ended when its trace closed and are not "
                    "recorded: %s",
                    len(self._open),
                    self._attempt_id,
                    ", ".join(sorted(set(self._open.values()))),
                )

    def unended_span_ids(self) -> list[int]:
        """Return the ids of the spans that have started and not ended."""
        return list(self._open)

    def unsent_summary(self) -> str:
        """Return a message with the number of spans that did not reach the store."""
        missing = len(self._ended) + len(self._unsent) + self._lost
        return f"{missing} spans of attempt {self._attempt_id} are not in the store"

    async def drain(self) -> None:
        """Submit spans as long as there are any; called by the export loop."""
        assert self._store is not None
        while True:
            await self._submit_until_done(self._store, abandon=True)
            self._drain_started = False
            # Checked after the flag: a span that ends meanwhile is found here, or starts a drain.
            if self.closed or self._failure is not None or not self._ended:
                return
            self._drain_started = True

    async def _submit_until_done(self, store: LightningStore, *, abandon: bool) -> None:
        failures = 0
        while self._failure is None:
            busy = self._claim()
            if busy is not None:
                await asyncio.wrap_future(busy)
                continue
            try:
                await self._submit_all(store)
            except _RETRIED as error:
                delay = _RETRY_DELAYS[min(failures, len(_RETRY_DELAYS) - 1)]
                failures += 1
                _logger.warning(
                    "spans of attempt %s wait for the store, next try in %g s: %s",
                    self._attempt_id,
                    delay,
                    error,
                )
            except Exception as error:
                self._fail(error)
                return
            else:
                return
            finally:
                self._release()
            if abandon and self.closed:
                return
            await asyncio.sleep(delay)

    async def _submit_all(self, store: LightningStore) -> None:
        while True:
            self._convert()
            batch = list(islice(self._unsent, _MAX_BATCH))
            if not batch:
                return
            fresh = batch[self._numbered :]
            if fresh:
                ids = await store.get_many_span_sequence_ids(
                    [(self._rollout_id, self._attempt_id)] * len(fresh)
                )
                with self._convert_lock:
                    for span, sequence_id in zip(fresh, ids, strict=True):
                        span.sequence_id = self._last_id = sequence_id
                    self._numbered = len(batch)
            await store.add_many_spans(batch)
            with self._convert_lock:
                for _ in batch:
                    self._unsent.popleft()
                self._numbered -= len(batch)
            with self._room:
                self._room.notify_all()

    def _claim(self) -> concurrent.futures.Future[None] | None:
        """Become the submitter, or return a future that is done when the current one ends."""
        with self._submit_lock:
            if self._submitter is None:
                self._submitter = threading.get_ident()
                return None
            waiter: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._submit_waiters.append(waiter)
            return waiter

    def _release(self) -> None:
        with self._submit_lock:
            self._submitter = None
            waiters, self._submit_waiters = self._submit_waiters, []
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        with self._room:
            if self._failure is None:
                self._failure = error
            self._room.notify_all()
