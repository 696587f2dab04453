from __future__ import annotations

import asyncio

import pytest

from agl_core.emitter import emit_message, emit_reward
from agl_core.tracer import get_active_tracer
from agl_core.types import TraceStatus
from agl_tracer_dummy import DummyTracer


def test_spans_are_created_and_not_sent():
    tracer = DummyTracer()
    core = tracer.create_span("x", {"a": 1}, timestamp=2.0)
    assert core.model_dump() == {
        "name": "x",
        "status": {"status_code": "OK", "description": None},
        "attributes": {"a": 1},
        "start_time": 2.0,
        "end_time": 2.0,
    }
    status = TraceStatus(status_code="UNSET")
    assert tracer.create_span("x", status=status).status == status
    assert tracer.get_last_trace() == []


def test_an_operation_keeps_what_was_recorded():
    with DummyTracer().operation_context("work", {"a": 1}, 1.0, 2.0) as recorder:
        recorder.record_attributes({"b": {"c": 1}})
        recorder.record_status("ERROR", "why")
        assert recorder.get_recorded_span().end_time is None
    core = recorder.get_recorded_span()
    assert (core.start_time, core.end_time) == (1.0, 2.0)
    assert core.attributes == {"a": 1, "b": '{"c": 1}'}
    assert core.status.description == "why"

    with pytest.raises(KeyError), DummyTracer().operation_context("work") as recorder:
        raise KeyError("k")
    core = recorder.get_recorded_span()
    assert core.status.status_code == "ERROR"
    assert core.attributes["exception.type"] == "KeyError"
    assert core.end_time is not None and core.start_time is not None
    assert core.end_time >= core.start_time


async def test_a_trace_keeps_its_spans_for_reading():
    tracer = DummyTracer()

    async def run(index: int) -> list[str]:
        async with tracer.trace_context(rollout_id=f"r{index}", attempt_id="a"):
            emit_reward(index)
            await asyncio.sleep(0)
            with get_active_tracer().operation_context("work"):  # type: ignore[union-attr]
                emit_message("x", propagate=False)
        spans = tracer.get_last_trace()
        assert {span.rollout_id for span in spans} == {f"r{index}"}
        assert [span.sequence_id for span in spans] == [0, 1]
        return [span.name for span in spans]

    traces = await asyncio.gather(*map(run, range(5)))
    assert traces == [["agentlightning.annotation", "work"]] * 5
    # One after the other in one task, and one within another.
    async with tracer.trace_context():
        emit_message("outer")
        async with tracer.trace_context():
            assert tracer.get_last_trace() == []
            emit_message("inner")
        emit_message("outer")
    assert len(tracer.get_last_trace()) == 2
    async with tracer.trace_context():
        pass
    assert tracer.get_last_trace() == []
    tracer.create_span("stray")
    assert tracer.get_last_trace() == []
