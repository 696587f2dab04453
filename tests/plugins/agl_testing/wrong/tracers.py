"""Tracers that are wrong in one way each."""

from __future__ import annotations

import contextlib
import pickle

from agl_core.tracer import OtelTracer
from agl_core.tracer._active import _active
from agl_core.types import TraceStatus


class Base(OtelTracer):
    CAUGHT_BY = ""

    def __init__(self) -> None:
        super().__init__(flush_timeout=0.5)


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
