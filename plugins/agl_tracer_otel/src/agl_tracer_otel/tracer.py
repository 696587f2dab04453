"""The default tracer: records all OpenTelemetry spans of a running agent.

These are the model calls of the OpenAI and Anthropic clients, the spans of emitters and operations,
those that the agent creates with OpenTelemetry itself, and those of the instrumentation libraries
in the tracer's configuration.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import anyio
from opentelemetry import context as otel_context, trace as otel_trace
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from agl_core.errors import InvalidArgumentError, StoreUnavailableError, TracerError
from agl_core.otel import record_failure, to_core_fields
from agl_core.plugins import configured_by
from agl_core.tracer import Tracer, activate
from agl_core.types import Span, SpanCoreFields, SpanRecordingContext, StatusCode, TraceStatus
from agl_tracer_otel.call_writer import RECORDED_CLIENTS, CallWriter
from agl_tracer_otel.config import OtelTracerConfig
from agl_tracer_otel.current import live_context
from agl_tracer_otel.exporter import ExportLoop, shared_export_loop, silent_context
from agl_tracer_otel.instrument import InstrumentationReport, instrumented
from agl_tracer_otel.model_calls import record_model_calls
from agl_tracer_otel.processor import (
    TraceIdGenerator,
    current_recording,
    span_processor,
    with_recording,
)
from agl_tracer_otel.provider import attach_span_processor, get_tracer
from agl_tracer_otel.recording import TraceRecording
from agl_tracer_otel.threads import traces_follow_threads

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import AttributeValue

_logger = logging.getLogger(__name__)

_NANOSECONDS: Final = 1_000_000_000  # per second
_SDK_STATUS: Final = {code.name: code for code in otel_trace.StatusCode}

# The trace that a task closed last; a task must find its own trace, not another task's.
_last_recording: ContextVar[TraceRecording | None] = ContextVar("agl_last_recording", default=None)


class OtelTracer(Tracer):
    """Records spans through OpenTelemetry and sends them to the store as they end.

    Spans leave the agent's threads at once and reach the store in batches, in the order in which
    they ended. While the store is down, up to ``max_buffered`` spans per trace wait for it; then
    the agent waits, at most ``max_wait`` seconds; then the trace is given up, the agent continues,
    and leaving the trace context raises.

    Thread safety: one tracer serves any number of workers, threads and tasks.

    Options: :class:`OtelTracerConfig`.

    Attributes:
        instrumentation: Instrumentation libraries that are active, and those that failed.
    """

    @configured_by(OtelTracerConfig)
    def __init__(self, config: OtelTracerConfig) -> None:
        self._config = config
        self.instrumentation = InstrumentationReport()
        self._calls = self._call_writer() if config.model_calls else None
        if self._calls is not None:
            self._calls.proxied = config.model_calls != "direct"
        self._workers: list[ExitStack] = []  # resources of each worker, released at its teardown
        self._otel_tracer: otel_trace.Tracer | None = None
        self._export_loop: ExportLoop | None = None
        self._last: TraceRecording | None = None
        self._strayed = False

    def _call_writer(self) -> CallWriter | None:
        """Return what describes model calls; None if this tracer does not record them."""
        return CallWriter(self._recorded_clients())

    def _recorded_clients(self) -> frozenset[str]:
        """Return the clients that no instrumentation library named in the options records."""
        named = self._config.instrument
        others = () if named is None or named == "auto" else named
        return RECORDED_CLIENTS - {name.rpartition(":")[2] for name in others}

    # -- life cycle ------------------------------------------------------------------------------

    def init_worker(
        self, worker_id: int, store: LightningStore | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """See :meth:`Tracer.init_worker`.

        Raises:
            TracerError: OpenTelemetry is switched off in this process, or an instrumentation
                library asked for by name cannot be activated.
        """
        super().init_worker(worker_id, store, *args, **kwargs)
        with ExitStack() as stack:
            self._set_up(stack)
            # One entry, because workers of other threads are set up and torn down meanwhile.
            self._workers.append(stack.pop_all())

    def _set_up(self, stack: ExitStack) -> None:
        """Enter the resources of one worker; they are released in the opposite order."""
        processor = span_processor()
        provider = attach_span_processor(processor, TraceIdGenerator(), processor.wants)
        self._otel_tracer = get_tracer()
        self._export_loop = stack.enter_context(shared_export_loop())
        if self._config.follow_threads:
            stack.enter_context(traces_follow_threads())
        recorded = self._calls.clients if self._calls else frozenset[str]()
        if recorded:
            stack.enter_context(record_model_calls())
        self.instrumentation = stack.enter_context(
            instrumented(self._config.instrument, provider, recorded)
        )

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        super().teardown_worker(worker_id, *args, **kwargs)
        if self._workers:
            self._workers.pop().close()

    # -- recording a trace -----------------------------------------------------------------------

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncGenerator[otel_trace.Tracer]:
        """See :meth:`Tracer.trace_context`; yields the OpenTelemetry tracer."""
        otel_tracer = self._initialised()
        recording = self._new_recording(store, rollout_id, attempt_id)
        outer = otel_context.get_current()
        # A trace starts without a parent: a span around the runner is not part of the attempt.
        rootless = otel_trace.set_span_in_context(otel_trace.INVALID_SPAN, outer)
        otel_context.attach(with_recording(recording, rootless))
        try:
            with activate(self):
                yield otel_tracer
        except BaseException as error:
            try:
                await self._close(recording, outer)
            except Exception as lost:
                error.add_note(str(lost))  # the agent's own error is the one to report
            raise
        else:
            await self._close(recording, outer)

    def _initialised(self) -> otel_trace.Tracer:
        if self._otel_tracer is None:
            raise TracerError(
                "the tracer is not initialised: call init_worker first, or use tracer.lifespan()"
            )
        return self._otel_tracer

    def _new_recording(
        self, store: LightningStore | None, rollout_id: str | None, attempt_id: str | None
    ) -> TraceRecording:
        if store is not None:
            warnings.warn(
                "trace_context(store=…) is deprecated: pass the store to init_worker",
                DeprecationWarning,
                stacklevel=5,
            )
        if (rollout_id is None) != (attempt_id is None):
            raise InvalidArgumentError("give rollout_id and attempt_id, or neither")
        export_loop = None
        if rollout_id is None:
            store = None
        else:
            store = store or self._store
            if store is None:
                raise InvalidArgumentError(
                    "spans of an attempt need a store: pass one to init_worker"
                )
            export_loop = (
                self._export_loop
                if store.capabilities.get("thread_safe")
                else ExportLoop(asyncio.get_running_loop())
            )
        return TraceRecording(
            store=store,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            export_loop=export_loop,
            trace_id=RandomIdGenerator().generate_trace_id(),
            max_buffered=self._config.max_buffered,
            max_wait=self._config.max_wait,
            call_writer=self._calls,
            tracer=self,
        )

    async def _close(self, recording: TraceRecording, outer: otel_context.Context) -> None:
        otel_context.attach(silent_context())
        try:
            # Shielded: cancelling the agent must not lose the spans recorded before.
            with anyio.move_on_after(self._config.flush_timeout, shield=True) as scope:
                await recording.close()
        except StoreUnavailableError as error:
            raise StoreUnavailableError(f"{recording.unsent_summary()}: {error}") from error
        except Exception as error:
            error.add_note(recording.unsent_summary())
            raise
        finally:
            span_processor().forget(recording.unended_span_ids())
            otel_context.attach(outer)
            _last_recording.set(recording)
            self._last = recording
        if scope.cancelled_caught:
            raise StoreUnavailableError(
                f"{recording.unsent_summary()}: the store accepted none within "
                f"{self._config.flush_timeout:g} s"
            )

    async def flush(self) -> None:
        recording = current_recording()
        if recording is None:
            return
        outer = otel_context.get_current()
        otel_context.attach(silent_context())
        try:
            await recording.flush()
        finally:
            otel_context.attach(outer)

    def get_last_trace(self) -> list[Span]:
        recording = current_recording() or _last_recording.get() or self._last
        return [] if recording is None else recording.spans()

    # -- creating spans --------------------------------------------------------------------------

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        nanoseconds = time.time_ns() if timestamp is None else int(timestamp * _NANOSECONDS)
        span = self._start_span(name, attributes, nanoseconds)
        if status is not None and status.status_code != "UNSET":
            span.set_status(_SDK_STATUS[status.status_code], status.description)
        span.end(nanoseconds)
        return to_core_fields(span)

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Generator[SpanRecordingContext]:
        span = self._start_span(name, attributes, _nanoseconds(start_time))
        recorder = _OtelSpanRecordingContext(span)
        outer = live_context()
        otel_context.attach(otel_trace.set_span_in_context(span, outer))
        try:
            yield recorder
        except BaseException as error:
            recorder.record_exception(error)
            raise
        finally:
            otel_context.attach(outer)
            span.end(_nanoseconds(end_time))

    def _start_span(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None,
        start_time: int | None,
    ) -> SdkSpan:
        otel_tracer = self._initialised()
        if current_recording() is None and not self._strayed:
            self._strayed = True
            _logger.warning(
                "span %r and others like it are not recorded: they were made outside of this "
                "tracer's trace contexts",
                name,
            )
        span = otel_tracer.start_span(
            name, live_context(), attributes=attributes, start_time=start_time
        )
        assert isinstance(span, SdkSpan)  # our own provider samples every span
        return span


class _OtelSpanRecordingContext(SpanRecordingContext):
    """Writes to an open span of the SDK."""

    def __init__(self, span: SdkSpan) -> None:
        self._span = span

    def record_exception(self, exception: BaseException) -> None:
        record_failure(self._span, exception)

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._span.set_attributes(attributes)

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        self._span.set_status(_SDK_STATUS[status_code], description)

    def get_recorded_span(self) -> SpanCoreFields:
        return to_core_fields(self._span)


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * _NANOSECONDS)
