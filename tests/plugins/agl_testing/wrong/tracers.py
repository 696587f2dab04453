"""Tracers that are wrong in one way each."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading

from agl_core.errors import StoreUnavailableError
from agl_core.tracer._active import _active
from agl_core.types import TraceStatus
from agl_tracer_otel import OtelTracer


class Base(OtelTracer):
    CAUGHT_BY = ""

    def __init__(self) -> None:
        # As in the core's own suite: on a busy machine 700 spans take more than half a second.
        super().__init__(flush_timeout=2.0)


class LeaksItsContext(Base):
    CAUGHT_BY = "test_it_is_the_active_tracer_within_its_context_only"

    @contextlib.asynccontextmanager
    async def trace_context(self, name=None, **ids):
        async with super().trace_context(name, **ids) as inner:
            yield inner
        _active.set(self)


class HidesALostStore(Base):
    CAUGHT_BY = "test_closing_the_context_reports_a_store_that_is_down"

    @contextlib.asynccontextmanager
    async def trace_context(self, name=None, **ids):
        with contextlib.suppress(ConnectionError):
            async with super().trace_context(name, **ids) as inner:
                yield inner


class SwallowsTheAgentsError(Base):
    CAUGHT_BY = "test_an_error_of_the_agent_passes_through_and_its_spans_are_kept"

    @contextlib.asynccontextmanager
    async def trace_context(self, name=None, **ids):
        with contextlib.suppress(ZeroDivisionError):
            async with super().trace_context(name, **ids) as inner:
                yield inner


class ForgetsTheStatus(Base):
    CAUGHT_BY = "test_a_created_span_returns_what_it_recorded"

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        return super().create_span(name, attributes, timestamp, TraceStatus(status_code="OK"))


class HasNoParents(Base):
    CAUGHT_BY = "test_an_operation_is_the_parent_of_what_happens_in_it"

    @contextlib.contextmanager
    def operation_context(self, name, attributes=None, start_time=None, end_time=None):
        from opentelemetry import context, trace

        with super().operation_context(name, attributes, start_time, end_time) as recorder:
            token = context.attach(trace.set_span_in_context(trace.INVALID_SPAN))
            try:
                yield recorder
            finally:
                context.detach(token)


class TakesHalfTheIds(Base):
    CAUGHT_BY = "test_one_id_without_the_other_is_refused"

    def trace_context(self, name=None, *, rollout_id=None, attempt_id=None, **rest):
        if rollout_id is None or attempt_id is None:
            rollout_id = attempt_id = None
        return super().trace_context(name, rollout_id=rollout_id, attempt_id=attempt_id, **rest)


class CannotTravel(Base):
    CAUGHT_BY = "test_it_can_be_pickled_before_use"

    def __getstate__(self):
        raise pickle.PicklingError("it holds a connection")


class KeepsItsStackInItself(Base):
    CAUGHT_BY = "test_spans_of_gathered_tasks_belong_to_the_trace"

    def __init__(self) -> None:
        super().__init__()
        self.stack: list = []

    @contextlib.contextmanager
    def operation_context(self, name, attributes=None, start_time=None, end_time=None):
        from opentelemetry import context, trace

        if self.stack:
            context.attach(trace.set_span_in_context(self.stack[-1]))
        with super().operation_context(name, attributes, start_time, end_time) as recorder:
            span = vars(recorder)["_span"]
            self.stack.append(span)
            try:
                yield recorder
            finally:
                self.stack.remove(span)


class DropsSpansOfOtherThreads(Base):
    CAUGHT_BY = "test_spans_of_to_thread_belong_to_the_trace"

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        from opentelemetry import context

        if threading.current_thread() is not threading.main_thread():
            context.attach(context.Context())
        return super().create_span(name, attributes, timestamp, status)


class ReadsItsOwnClock(Base):
    CAUGHT_BY = "test_times_are_those_of_the_caller"

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        return super().create_span(name, attributes, None, status)


class EndsPeriodsNow(Base):
    CAUGHT_BY = "test_times_are_those_of_the_caller"

    def operation_context(self, name, attributes=None, start_time=None, end_time=None):
        return super().operation_context(name, attributes, start_time, None)


class KeepsAHundredSpans(Base):
    CAUGHT_BY = "test_hundreds_of_spans_arrive_whole_and_in_order"

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        from opentelemetry import context

        self.count += 1
        if self.count > 100:
            context.attach(context.Context())
        return super().create_span(name, attributes, timestamp, status)


class HidesASilentStore(Base):
    CAUGHT_BY = "test_a_store_that_never_answers_is_reported_in_time"

    @contextlib.asynccontextmanager
    async def trace_context(self, name=None, **ids):
        with contextlib.suppress(StoreUnavailableError):
            async with super().trace_context(name, **ids) as inner:
                yield inner


class WritesEverythingAsText(Base):
    CAUGHT_BY = "test_attributes_keep_their_types"

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        attributes = {key: str(value) for key, value in (attributes or {}).items()}
        return super().create_span(name, attributes, timestamp, status)


class FlushesLater(Base):
    CAUGHT_BY = "test_flushed_spans_are_in_the_store"

    async def flush(self):
        return None


class DropsWhatACancelledAgentDid(Base):
    CAUGHT_BY = "test_a_cancelled_agent_keeps_its_spans"

    async def _close(self, recording, outer):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            recording._ended.clear()
        await super()._close(recording, outer)


class ReportsTheStoreInsteadOfTheAgent(Base):
    CAUGHT_BY = "test_an_agents_error_comes_before_a_lost_store"

    @contextlib.asynccontextmanager
    async def trace_context(self, name=None, **ids):
        try:
            async with super().trace_context(name, **ids) as inner:
                yield inner
        except ZeroDivisionError as error:
            raise StoreUnavailableError("spans are lost") from error


class GivesEachSpanATraceOfItsOwn(Base):
    CAUGHT_BY = "test_the_spans_of_an_attempt_have_one_trace_id"

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        from agl_tracer_otel.processor import current_recording

        recording = current_recording()
        if recording is not None:
            vars(recording)["trace_id"] = RandomIdGenerator().generate_trace_id()
        return super().create_span(name, attributes, timestamp, status)
