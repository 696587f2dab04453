from __future__ import annotations

import asyncio
import logging
import pickle
import threading

import pytest
from opentelemetry import context as otel_context, trace as otel_trace
from opentelemetry.sdk.trace import TracerProvider

from agl_core.emitter import emit_message, emit_reward, find_final_reward, operation
from agl_core.errors import TracerError
from agl_core.tracer import clear_active_tracer, get_active_tracer, set_active_tracer
from agl_core.types import Span, TraceStatus
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer


def texts(spans: list[Span]) -> list[object]:
    return [span.attributes["agentlightning.message.body"] for span in spans]


async def test_a_trace_is_in_the_store_when_its_context_has_closed(desk):
    rollout = await desk.rollout()
    async with desk.trace(rollout):
        assert get_active_tracer() is desk.tracer
        emit_message("hello")
        emit_reward(0.5)
    assert get_active_tracer() is None
    spans = await desk.stored(rollout)
    assert [span.name for span in spans] == ["agentlightning.message", "agentlightning.annotation"]
    assert [span.sequence_id for span in spans] == [1, 2]
    assert {span.attempt_id for span in spans} == {rollout.attempt.attempt_id}
    assert find_final_reward(spans) == 0.5
    assert desk.tracer.get_last_trace() == spans
    # A span is also a heartbeat.
    assert (await desk.store.get_rollout_by_id(rollout.rollout_id)).status == "running"


async def test_spans_of_one_attempt_share_a_trace(desk):
    rollout = await desk.rollout()
    tracer = otel_trace.get_tracer("an.agent")
    async with desk.trace(rollout):
        with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
            emit_message("deep")
        emit_message("flat")
    message, inner, outer, flat = await desk.stored(rollout)
    assert (inner.name, outer.name) == ("inner", "outer")
    assert message.parent_id == inner.span_id and inner.parent_id == outer.span_id
    assert outer.parent_id is None and flat.parent_id is None
    assert len({span.trace_id for span in (message, inner, outer, flat)}) == 1


async def test_a_trace_has_no_parent(desk):
    rollout = await desk.rollout()
    app = TracerProvider(shutdown_on_exit=False).get_tracer("app")
    with app.start_as_current_span("around the runner") as around:
        async with desk.trace(rollout):
            emit_message("x")
        assert otel_trace.get_current_span() is around
    (span,) = await desk.stored(rollout)
    assert span.parent_id is None


async def test_concurrent_traces_in_one_loop_are_separate(desk):
    rollouts = [await desk.rollout() for _ in range(20)]

    async def run(index: int) -> list[str]:
        async with desk.trace(rollouts[index]):
            for step in range(5):
                emit_message(f"{index}.{step}")
                await asyncio.sleep(0)
        return [
            span.attributes["agentlightning.message.body"] for span in desk.tracer.get_last_trace()
        ]

    traces = await asyncio.gather(*map(run, range(20)))
    for index, (rollout, trace) in enumerate(zip(rollouts, traces, strict=True)):
        expected = [f"{index}.{step}" for step in range(5)]
        assert trace == expected
        assert texts(await desk.stored(rollout)) == expected


def test_concurrent_traces_in_threads_are_separate(desk):
    errors: list[BaseException] = []
    together = threading.Barrier(8)

    async def run(index: int) -> None:
        for turn in range(20):
            rollout = await desk.rollout()
            async with desk.trace(rollout):
                for step in range(5):
                    desk.tracer.create_span(f"{index}.{turn}.{step}")
            expected = [f"{index}.{turn}.{step}" for step in range(5)]
            assert [span.name for span in desk.tracer.get_last_trace()] == expected
            assert await desk.names(rollout) == expected

    def work(index: int) -> None:
        together.wait()
        try:
            asyncio.run(run(index))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


async def test_nested_traces_are_separate_and_restored(make_desk):
    outer, inner = make_desk(), make_desk()
    one, two = await outer.rollout(), await inner.rollout()
    async with outer.trace(one):
        emit_message("before")
        async with inner.trace(two):
            assert get_active_tracer() is inner.tracer
            emit_message("within")
            assert len(inner.tracer.get_last_trace()) == 1
        assert get_active_tracer() is outer.tracer
        emit_message("after")
        assert len(outer.tracer.get_last_trace()) == 2
    assert len(await outer.stored(one)) == 2
    assert len(await inner.stored(two)) == 1


async def test_a_span_belongs_to_the_trace_it_started_in(desk):
    one, two = await desk.rollout(), await desk.rollout()
    tracer = otel_trace.get_tracer("an.agent")
    async with desk.trace(one):
        span = tracer.start_span("long")
        async with desk.trace(two):
            span.end()
            # An explicit parent without the rest of its context is enough to find the trace.
            bare = otel_trace.set_span_in_context(span, otel_context.Context())
            tracer.start_span("child", context=bare).end()
    assert await desk.names(one) == ["long"]
    assert await desk.names(two) == ["child"]


async def test_a_parent_alone_determines_the_trace_of_a_span(desk):
    rollout = await desk.rollout()
    tracer = otel_trace.get_tracer("an.agent")
    async with desk.trace(rollout):
        with tracer.start_as_current_span("parent") as parent:
            bare = otel_trace.set_span_in_context(parent, otel_context.Context())

            def elsewhere() -> None:
                otel_context.attach(otel_context.Context())
                tracer.start_span("child", context=bare).end()

            await asyncio.to_thread(elsewhere)
    assert await desk.names(rollout) == ["child", "parent"]


async def test_without_ids_spans_stay_in_memory(desk):
    async with desk.tracer.trace_context("local") as otel_tracer:
        otel_tracer.start_span("a").end()
        emit_reward(1)
        assert len(desk.tracer.get_last_trace()) == 2
    spans = desk.tracer.get_last_trace()
    assert [(span.name, span.sequence_id) for span in spans] == [
        ("a", 0),
        ("agentlightning.annotation", 1),
    ]
    assert {(span.rollout_id, span.attempt_id) for span in spans} == {
        ("rollout-dummy", "attempt-dummy")
    }
    assert desk.store.batches == []


async def test_wrong_use_is_an_error():
    tracer = OtelTracer()
    with pytest.raises(RuntimeError, match="init_worker"):
        async with tracer.trace_context():
            pass
    with pytest.raises(TracerError, match="lifespan"):
        tracer.create_span("x")
    assert tracer.get_last_trace() == []
    with tracer.lifespan():
        with pytest.raises(ValueError, match="or neither"):
            async with tracer.trace_context(rollout_id="r"):
                pass
        with pytest.raises(ValueError, match="need a store"):
            async with tracer.trace_context(rollout_id="r", attempt_id="a"):
                pass
        assert get_active_tracer() is None


async def test_passing_the_store_is_deprecated(desk):
    store = InMemoryLightningStore()
    rollout = await store.start_rollout("task")
    with pytest.warns(DeprecationWarning, match="init_worker"):
        async with desk.tracer.trace_context(
            store=store, rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id
        ):
            emit_message("x")
    assert len(await store.query_spans(rollout.rollout_id)) == 1


async def test_the_last_trace_is_known_outside_the_task_that_made_it(desk):
    async def run() -> None:
        async with desk.tracer.trace_context():
            emit_message("x")

    await asyncio.create_task(run())
    assert len(desk.tracer.get_last_trace()) == 1


def test_running_a_function_in_a_trace_is_deprecated(desk):
    async def emit(text: str) -> None:
        emit_message(text)

    for run in (
        lambda: desk.tracer.trace_run(emit_message, "x"),
        lambda: asyncio.run(desk.tracer.trace_run_async(emit, "x")),
    ):
        with pytest.warns(DeprecationWarning, match="trace_context"):
            run()
        (span,) = desk.tracer.get_last_trace()
        assert span.attributes["agentlightning.message.body"] == "x"


async def test_an_error_of_the_agent_propagates_and_loses_no_span(desk):
    rollout = await desk.rollout()

    async def run() -> None:
        async with desk.trace(rollout):
            emit_reward(1.0)
            raise KeyError

    with pytest.raises(KeyError):
        await run()
    assert len(await desk.stored(rollout)) == 1
    assert get_active_tracer() is None


async def test_cancelling_the_agent_loses_no_span(desk):
    rollout = await desk.rollout()
    inside = asyncio.Event()

    async def run() -> None:
        async with desk.trace(rollout):
            emit_reward(1.0)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await desk.stored(rollout)) == 1


async def test_create_span_returns_the_recorded_span(desk):
    rollout = await desk.rollout()
    async with desk.trace(rollout):
        core = desk.tracer.create_span(
            "moment",
            {"a": 1, "b": ("x",)},
            timestamp=12.5,
            status=TraceStatus(status_code="ERROR", description="why"),
        )
        unset = desk.tracer.create_span("unset")
    assert core.model_dump() == {
        "name": "moment",
        "status": {"status_code": "ERROR", "description": "why"},
        "attributes": {"a": 1, "b": ["x"]},
        "start_time": 12.5,
        "end_time": 12.5,
    }
    assert unset.status.status_code == "UNSET"
    stored = (await desk.stored(rollout))[0]
    assert stored.start_time == stored.end_time == 12.5
    assert stored.attributes == core.attributes


async def test_an_operation_context_records_what_happens_in_it(desk):
    rollout = await desk.rollout()
    async with desk.trace(rollout):
        with desk.tracer.operation_context("work", {"a": 1}, start_time=1.0, end_time=2.0) as span:
            emit_message("within")
            span.record_attributes({"b": [1, 2]})
            span.record_status("OK", "fine")
        assert span.get_recorded_span().model_dump() == {
            "name": "work",
            "status": {"status_code": "OK", "description": None},
            "attributes": {"a": 1, "b": [1, 2]},
            "start_time": 1.0,
            "end_time": 2.0,
        }
        with pytest.raises(KeyboardInterrupt), desk.tracer.operation_context("broken"):
            raise KeyboardInterrupt("stop")
    message, work, broken = await desk.stored(rollout)
    assert message.parent_id == work.span_id
    assert broken.status.model_dump() == {"status_code": "ERROR", "description": "stop"}
    assert broken.events[0].attributes["exception.type"] == "KeyboardInterrupt"


async def test_attributes_are_not_cut_at_the_sdks_limit(desk):
    rollout = await desk.rollout()
    attributes = {f"k{index}": index for index in range(1000)}
    async with desk.trace(rollout):
        desk.tracer.create_span("big", attributes)
        span = otel_trace.get_tracer("an.agent").start_span("bigger", attributes=attributes)
        span.end()
    for span in await desk.stored(rollout):
        assert span.attributes == attributes


async def test_spans_that_never_end_are_reported(desk, caplog: pytest.LogCaptureFixture):
    rollout = await desk.rollout()
    tracer = otel_trace.get_tracer("an.agent")
    with caplog.at_level(logging.WARNING):
        async with desk.trace(rollout):
            context = otel_context.get_current()
            forgotten = tracer.start_span("forgotten")
        forgotten.end()
        for _ in range(2):
            tracer.start_span("late", context=context).end()
    assert "1 spans of attempt" in caplog.text and "forgotten" in caplog.text
    assert caplog.text.count("'late'") == 1
    assert await desk.names(rollout) == []


async def test_outside_of_traces_spans_cost_nothing_and_go_nowhere(desk):
    otel_trace.get_tracer("an.agent").start_span("stray").end()
    await desk.tracer.flush()
    assert desk.tracer.get_last_trace() == []
    assert desk.store.batches == []


def test_a_span_outside_of_traces_is_logged_once(desk, caplog: pytest.LogCaptureFixture):
    set_active_tracer(desk.tracer)
    try:
        assert emit_reward(0.5).attributes["agentlightning.reward.0.value"] == 0.5
        emit_reward(0.5)
    finally:
        clear_active_tracer()
    assert caplog.text.count("outside of this tracer's trace contexts") == 1


async def test_a_tracer_is_picklable_before_use_and_reusable_after():
    store = InMemoryLightningStore()
    tracer = pickle.loads(pickle.dumps(OtelTracer(max_buffered=3)))
    for _ in range(2):
        with tracer.lifespan(store):
            rollout = await store.start_rollout("task")
            async with tracer.trace_context(
                rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id
            ):
                emit_message("x")
        assert len(await store.query_spans(rollout.rollout_id)) == 1


def exporter_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "agl-span-exporter"]


def test_workers_share_one_thread_and_leave_none_behind():
    start, before = threading.Thread.start, set(threading.enumerate())
    tracer, other = OtelTracer(), OtelTracer()
    tracer.init_worker(0)
    tracer.init_worker(1)
    other.init_worker(0)
    assert len(exporter_threads()) == 1
    tracer.teardown_worker(0)
    other.teardown_worker(0)
    assert len(exporter_threads()) == 1
    tracer.teardown_worker(1)
    tracer.teardown_worker(1)  # one call too many has no effect
    assert exporter_threads() == []
    assert threading.Thread.start is start
    assert set(threading.enumerate()) <= before


def test_the_langchain_handler_is_somewhere_else():
    with pytest.warns(UserWarning, match="agentops"):
        assert OtelTracer().get_langchain_handler() is None


async def test_operations_are_traced_across_awaits(desk):
    @operation
    async def think(depth: int) -> int:
        await asyncio.sleep(0)
        return depth if depth == 0 else await think(depth - 1)

    rollout = await desk.rollout()
    async with desk.trace(rollout):
        await asyncio.gather(think(2), think(1))
    spans = {span.span_id: span for span in await desk.stored(rollout)}
    depths = sorted(
        (span.attributes["agentlightning.operation.input.depth"], span.parent_id is None)
        for span in spans.values()
    )
    assert depths == [(0, False), (0, False), (1, False), (1, True), (2, True)]
    for span in spans.values():
        if span.parent_id is not None:
            parent = spans[span.parent_id]
            key = "agentlightning.operation.input.depth"
            assert parent.attributes[key] == span.attributes[key] + 1
