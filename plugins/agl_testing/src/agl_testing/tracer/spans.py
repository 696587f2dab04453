"""Spans that a tracer creates: names, values, times, status, parents."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agl_core import semconv
from agl_core.emitter import emit_message, operation
from agl_core.store import LightningStore
from agl_core.tracer import Tracer
from agl_core.types import TraceStatus
from agl_testing.tracer.base import TracerTests

__all__ = ["SpanTests"]


class SpanTests(TracerTests):
    """A span has what its caller gave."""

    async def test_an_operation_is_the_parent_of_what_happens_in_it(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def work() -> None:
            with operation(name="outer"):
                emit_message("inner")

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        (outer,) = [span for span in spans if span.name == semconv.SPAN_OPERATION]
        (inner,) = [span for span in spans if span.name == semconv.SPAN_MESSAGE]
        assert inner.parent_id == outer.span_id
        assert inner.trace_id == outer.trace_id
        assert outer.attributes[semconv.OPERATION_NAME] == "outer"
        assert (outer.start_time or 0) <= (inner.start_time or 0) <= (outer.end_time or 0)

    async def test_an_operation_records_the_error_that_leaves_it(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def work() -> None:
            with pytest.raises(KeyError), operation(name="failing"):
                raise KeyError("gone")

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        (failed,) = [span for span in spans if span.name == semconv.SPAN_OPERATION]
        assert failed.status.status_code == "ERROR"
        assert "gone" in (failed.status.description or "")

    async def test_a_created_span_returns_what_it_recorded(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        made: list[Any] = []

        def work() -> None:
            status = TraceStatus(status_code="ERROR", description="no")
            made.append(tracer.create_span("made", {"k": [1, 2], "t": "x"}, status=status))

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        (span,) = [span for span in spans if span.name == "made"]
        assert made[0].name == "made"
        assert made[0].attributes["k"] == span.attributes["k"] == [1, 2]
        assert span.status.status_code == made[0].status.status_code == "ERROR"

    async def test_times_are_those_of_the_caller(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        moment, begin, end = 1_700_000_000.25, 1_600_000_000.5, 1_600_000_002.75

        def work() -> None:
            tracer.create_span("moment", timestamp=moment)
            with tracer.operation_context("period", start_time=begin, end_time=end):
                emit_message("inside")
            with tracer.operation_context("begun", start_time=begin):
                pass

        before = time.time()
        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        at = {span.name: (span.start_time, span.end_time) for span in spans}
        assert at["moment"] == (pytest.approx(moment, abs=1e-5),) * 2
        assert at["period"] == (pytest.approx(begin, abs=1e-5), pytest.approx(end, abs=1e-5))
        started, ended = at["begun"]
        assert started == pytest.approx(begin, abs=1e-5)
        assert before - 1 <= (ended or 0) <= time.time() + 1

    async def test_without_times_the_clock_counts(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def work() -> None:
            tracer.create_span("moment")
            with tracer.operation_context("period"):
                time.sleep(0.02)

        before = time.time()
        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        after = time.time()
        at = {span.name: (span.start_time or 0, span.end_time or 0) for span in spans}
        assert at["moment"][0] == at["moment"][1]
        for started, ended in at.values():
            assert before - 0.01 <= started <= ended <= after + 0.01
        assert at["period"][1] - at["period"][0] >= 0.015

    async def test_attributes_keep_their_types(self, tracer: Tracer, tracer_store: LightningStore):
        attributes: dict[str, Any] = {
            "text": "\u2603",
            "empty": "",
            "yes": True,
            "integer": 2**53 + 1,
            "no": False,
            "zero": 0,
            "whole": 1.0,
            "exact": 0.1 + 0.2,
            "tiny": 5e-324,
            "texts": ["a", ""],
            "integers": [1, 2],
            "floats": [1.0, 0.1 + 0.2],
            "flags": [True, False],
        }

        def work() -> None:
            tracer.create_span("made", attributes)
            with tracer.operation_context("operation", attributes) as recorder:
                recorder.record_attributes({"later": 2.0, "text": "changed"})

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        found = {span.name: dict(span.attributes) for span in spans}
        wanted = {"made": attributes}
        wanted["operation"] = {**attributes, "later": 2.0, "text": "changed"}
        for name, values in wanted.items():
            kept = {key: found[name].get(key) for key in values}
            assert kept == values
            assert {k: type(v) for k, v in kept.items()} == {k: type(v) for k, v in values.items()}

    @pytest.mark.parametrize("code", ["OK", "ERROR", "UNSET"])
    async def test_a_status_is_kept(self, tracer: Tracer, tracer_store: LightningStore, code: Any):
        text = "why" if code == "ERROR" else None

        def work() -> None:
            status = TraceStatus(status_code=code, description=text)
            tracer.create_span("made", status=status)
            with tracer.operation_context("operation") as recorder:
                if code != "UNSET":
                    recorder.record_status(code, text)
            assert recorder.get_recorded_span().status.status_code == code

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        found = {span.name: (span.status.status_code, span.status.description) for span in spans}
        assert found["made"] == found["operation"] == (code, text)

    async def test_an_exception_becomes_an_event_and_propagates(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def work() -> None:
            with pytest.raises(KeyError, match="gone"), tracer.operation_context("failing"):
                raise KeyError("gone")
            with tracer.operation_context("recovered") as recorder:
                recorder.record_exception(ValueError("handled"))

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        found = {span.name: span for span in spans}
        for name, kind, text in (("failing", "KeyError", "gone"), ("recovered", "ValueError", "h")):
            span = found[name]
            assert span.status.status_code == "ERROR"
            (event,) = span.events
            assert event.name == "exception"
            assert event.attributes["exception.type"] == kind
            assert text in str(event.attributes["exception.message"])

    async def test_an_operation_that_ended_has_no_more_children(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def work() -> None:
            with operation(name="outer"):
                with operation(name="inner"):
                    emit_message("in both")
                emit_message("in the outer one")
            emit_message("in none")

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        inner, outer = [span for span in spans if span.name == semconv.SPAN_OPERATION]
        messages = [span for span in spans if span.name == semconv.SPAN_MESSAGE]
        assert inner.parent_id == outer.span_id
        assert [span.parent_id for span in messages[:2]] == [inner.span_id, outer.span_id]
        assert messages[2].parent_id not in (inner.span_id, outer.span_id)
        assert outer.attributes[semconv.OPERATION_NAME] == "outer"
