"""Faults of tracers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from agl_core import semconv
from agl_core.store import InterceptedStore
from agl_tracer_otel import OtelTracer


class Tracer(OtelTracer):
    SUITE, FIXTURE = "TracerSuite", "tracer"
    FLAGS = ("concurrent", "nested", "threads", "opentelemetry")
    CAUGHT_BY = ""

    def __init__(self) -> None:
        super().__init__(flush_timeout=2.0)


GOOD = (Tracer,)


# -- errors of the agent --------------------------------------------------------------------------


class _Hides(Tracer):
    hidden: type[BaseException] = Exception

    @contextlib.asynccontextmanager
    async def trace_context(self, name=None, **ids):
        with contextlib.suppress(self.hidden):
            async with super().trace_context(name, **ids) as inner:
                yield inner


class SwallowsSystemExit(_Hides):
    """`sys.exit` of an agent looks like success."""

    CAUGHT_BY = "test_what_ends_an_agent_passes_through"

    hidden = SystemExit


class SwallowsKeyboardInterrupt(_Hides):
    """Ctrl+C in an agent looks like success."""

    CAUGHT_BY = "test_what_ends_an_agent_passes_through"

    hidden = KeyboardInterrupt


class SwallowsCancellation(_Hides):
    """A cancelled agent looks like one that finished."""

    CAUGHT_BY = "test_a_cancelled_agent_keeps_its_spans"

    hidden = asyncio.CancelledError


class SwallowsTimeouts(_Hides):
    """A TimeoutError of the agent is taken for one of its own flush."""

    CAUGHT_BY = "test_what_ends_an_agent_passes_through"

    hidden = TimeoutError


class TurnsErrorsIntoAnother(Tracer):
    """The agent's error becomes a RuntimeError."""

    CAUGHT_BY = "test_an_error_of_the_agent_passes_through_and_its_spans_are_kept"

    @contextlib.asynccontextmanager
    async def trace_context(self, name=None, **ids):
        try:
            async with super().trace_context(name, **ids) as inner:
                yield inner
        except ArithmeticError as error:
            raise RuntimeError("the trace failed") from error


class SwallowsErrorsOfOperations(Tracer):
    """An error in an operation does not leave it."""

    CAUGHT_BY = "test_an_exception_becomes_an_event_and_propagates"

    @contextlib.contextmanager
    def operation_context(self, name, attributes=None, start_time=None, end_time=None):
        with (
            contextlib.suppress(LookupError),
            super().operation_context(name, attributes, start_time, end_time) as recorder,
        ):
            yield recorder


class SwallowsSystemExitInOperations(Tracer):
    """`sys.exit` in an operation does not leave it."""

    CAUGHT_BY = "test_what_ends_an_operation_passes_through"

    @contextlib.contextmanager
    def operation_context(self, name, attributes=None, start_time=None, end_time=None):
        with (
            contextlib.suppress(SystemExit),
            super().operation_context(name, attributes, start_time, end_time) as recorder,
        ):
            yield recorder


# -- what it loses --------------------------------------------------------------------------------


class _Filters(Tracer):
    """Gives the store what ``keep`` returns of each batch of spans."""

    def keep(self, span: Any) -> Any:
        return span

    def init_worker(self, worker_id, store=None):
        if store is not None:
            store = _Filtered(store, self.keep)
        super().init_worker(worker_id, store)


class _Filtered(InterceptedStore):
    def __init__(self, store, keep):
        super().__init__(store)
        self.keep = keep

    async def add_many_spans(self, spans):
        await super().add_many_spans([span for span in spans if self.keep(span)])
        return list(spans)


class DropsTheSecondHalf(_Filters):
    """Of a trace, the spans after the 500th do not reach the store."""

    CAUGHT_BY = "test_thousands_of_spans_arrive"

    def keep(self, span):
        return span.sequence_id <= 500


class DropsLargeSpans(_Filters):
    """Spans of more than 64 KB do not reach the store."""

    CAUGHT_BY = "test_a_large_text_arrives_whole"

    def keep(self, span):
        return sum(len(str(v)) for v in span.attributes.values()) < 2**16


class DropsLongTraces(_Filters):
    """Spans after the 1,500th do not reach the store."""

    CAUGHT_BY = "test_thousands_of_spans_arrive"

    def keep(self, span):
        return span.sequence_id <= 1500


class CutsTexts(Tracer):
    """It cuts texts after 4,096 characters."""

    CAUGHT_BY = "test_a_large_text_arrives_whole"

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        cut = {k: v[:4096] if isinstance(v, str) else v for k, v in (attributes or {}).items()}
        return super().create_span(name, cut, timestamp, status)


class _Changes(_Filters):
    """Gives the store what ``change`` makes of each attribute."""

    def change(self, value: Any) -> Any:
        return value

    def keep(self, span):
        span.attributes.update({k: self.change(v) for k, v in span.attributes.items()})
        return True


class RoundsNumbers(_Changes):
    """Numbers have six digits."""

    CAUGHT_BY = "test_attributes_keep_their_types"

    def change(self, value):
        return float(f"{value:.6g}") if isinstance(value, float) else value


class TakesFalseForNothing(_Filters):
    """Attributes that are False do not reach the store."""

    CAUGHT_BY = "test_attributes_keep_their_types"

    def keep(self, span):
        for key in [key for key, value in span.attributes.items() if value is False]:
            del span.attributes[key]
        return True


class KeepsOneHundredAttributes(_Filters):
    """A span has at most 128 attributes, as OpenTelemetry's default says."""

    CAUGHT_BY = "test_many_attributes_and_a_long_name_arrive_whole"

    def keep(self, span):
        for key in list(span.attributes)[128:]:
            del span.attributes[key]
        return True


class CutsNames(_Filters):
    """Names have at most 64 characters."""

    CAUGHT_BY = "test_many_attributes_and_a_long_name_arrive_whole"

    def keep(self, span):
        span.name = span.name[:64]
        return True


class RemembersTheTraceBefore(Tracer):
    """After a trace without spans, the last trace is the one before."""

    CAUGHT_BY = "test_a_trace_without_spans_is_not_the_one_before"

    last: Any = ()

    def get_last_trace(self):
        self.last = super().get_last_trace() or self.last
        return list(self.last)


class DropsRewardsOfZero(Tracer):
    """A reward of 0 is taken for none."""

    CAUGHT_BY = "test_a_reward_of_zero_arrives"

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        value = (attributes or {}).get(semconv.PRIMARY_REWARD_VALUE)
        kept = attributes if value != 0 else {}
        return super().create_span(name, kept, timestamp, status)


class SortsLists(Tracer):
    """It sorts lists of attributes, such as token ids."""

    CAUGHT_BY = "test_attributes_of_the_caller_are_left_alone"

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        sorted_: dict[str, Any] = {
            k: sorted(v) if isinstance(v, list) else v for k, v in (attributes or {}).items()
        }
        return super().create_span(name, sorted_, timestamp, status)


class WritesIntoTheCallersAttributes(Tracer):
    """It leaves a key in the attributes that it was given."""

    CAUGHT_BY = "test_attributes_of_the_caller_are_left_alone"

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        span = super().create_span(name, attributes, timestamp, status)
        if isinstance(attributes, dict):
            attributes["agl.recorded"] = True
        return span
