"""Routes each span of the process to the trace it belongs to.

The running trace is stored in OpenTelemetry's context and propagates with it: into tasks, into
threads that are started with a context, and through instrumentation libraries that pass it on.
A span belongs to the trace in which it was *started*, even if it ends elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import get_current_span

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span as SdkSpan
    from opentelemetry.trace import SpanContext

    from agl_tracer_otel.recording import TraceRecording

_KEY: Final = otel_context.create_key("agl-recording")


def current_recording(context: Context | None = None) -> TraceRecording | None:
    """Return the trace that runs in an OpenTelemetry context, by default the current one."""
    return cast("TraceRecording | None", otel_context.get_value(_KEY, context))


def with_recording(recording: TraceRecording, context: Context) -> Context:
    """Return ``context`` with ``recording`` as its running trace."""
    return otel_context.set_value(_KEY, recording, context)


class LightningSpanProcessor(SpanProcessor):
    """Hands each span that ends to the recording of the trace it was started in. Thread-safe.

    Attached to the process's tracer provider once and never removed; without an open trace it does
    nothing.
    """

    def __init__(self) -> None:
        self._open: dict[int, TraceRecording] = {}

    def wants(self, context: Context | None) -> bool:
        """Tell whether a span that starts in a context belongs to a trace."""
        parent = get_current_span(context).get_span_context()
        return self._recording_of(context, parent) is not None

    def _recording_of(
        self, context: Context | None, parent: SpanContext | None
    ) -> TraceRecording | None:
        recording = current_recording(context)
        if recording is None:
            recording = current_recording()  # an explicit context may hold only a parent span
        if recording is None and parent is not None:
            recording = self._open.get(parent.span_id)
        return recording

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        recording = self._recording_of(parent_context, span.parent)
        if recording is None:
            return
        span_id = span.get_span_context().span_id
        if recording.span_started(span_id, span.name):
            self._open[span_id] = recording

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is None:
            return
        recording = self._open.pop(context.span_id, None)
        if recording is not None:
            recording.span_ended(context.span_id, span)

    def forget(self, span_ids: Iterable[int]) -> None:
        """Forget spans that never ended."""
        for span_id in span_ids:
            self._open.pop(span_id, None)


_PROCESSOR: Final = LightningSpanProcessor()


def span_processor() -> LightningSpanProcessor:
    """Return the processor of this process; only one, since a provider cannot remove processors."""
    return _PROCESSOR


class TraceIdGenerator(RandomIdGenerator):
    """Gives the spans of one attempt one trace id, also those that have no parent.

    A span without a parent whose context was given, in a thread that runs no attempt, has its own.
    """

    def generate_trace_id(self) -> int:
        recording = current_recording()
        return super().generate_trace_id() if recording is None else recording.trace_id
