"""The export of spans: order, batches, back-pressure, and failing stores."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from typing import Any

import pytest

from agl_core.emitter import emit_message, emit_reward
from agl_core.errors import AttemptNotFoundError, StoreFullError, StoreUnavailableError
from agl_tracer_otel import tracer as tracer_module
from agl_tracer_otel.exporter import ExportLoop
from agl_tracer_otel.recording import TraceRecording


async def test_spans_arrive_while_the_agent_blocks_its_loop(desk):
    rollout = await desk.rollout()
    async with desk.trace(rollout):
        emit_message("one")
        desk.store.wait_for_spans(1)  # blocks this loop
        emit_message("two")
        desk.store.wait_for_spans(2)
        assert desk.store.threads == {"agl-span-exporter"}
    assert [span.sequence_id for span in await desk.stored(rollout)] == [1, 2]


async def test_a_store_for_one_loop_is_called_from_that_loop_only(make_desk, flaky_store):
    desk = make_desk(flaky_store(thread_safe=False))
    rollout = await desk.rollout()
    async with desk.trace(rollout):
        await asyncio.to_thread(emit_message, "from a thread")
        while not desk.store.batches:
            await asyncio.sleep(0)
        emit_message("from the loop")
    assert desk.store.threads == {threading.current_thread().name}
    assert len(await desk.stored(rollout)) == 2


async def test_sequence_ids_follow_the_order_of_ends(desk):
    rollout = await desk.rollout()

    def emit(lane: int) -> None:
        for index in range(200):
            desk.tracer.create_span(f"{lane}.{index}")

    async with desk.trace(rollout):
        await asyncio.gather(*(asyncio.to_thread(emit, lane) for lane in range(4)))
    spans = await desk.stored(rollout)
    assert [span.sequence_id for span in spans] == list(range(1, 801))
    for lane in range(4):
        mine = [span.name for span in spans if span.name.startswith(f"{lane}.")]
        assert mine == [f"{lane}.{index}" for index in range(200)]
    assert desk.tracer.get_last_trace() == spans


async def test_sequence_ids_interleave_with_those_of_other_writers(desk):
    rollout = await desk.rollout()
    attempt = (rollout.rollout_id, rollout.attempt.attempt_id)
    async with desk.trace(rollout):
        emit_message("one")
        await desk.tracer.flush()
        assert await desk.store.get_next_span_sequence_id(*attempt) == 2  # a proxy, say
        emit_message("two")
        # Not stored yet: a copy with a provisional sequence id.
        desk.store.up.clear()
        guess = desk.tracer.get_last_trace()
        desk.store.up.set()
    assert [span.sequence_id for span in guess] in ([1, 2], [1, 3])
    assert [span.sequence_id for span in await desk.stored(rollout)] == [1, 3]
    assert [span.sequence_id for span in desk.tracer.get_last_trace()] == [1, 3]


async def test_a_readers_changes_to_waiting_spans_are_not_stored(desk):
    rollout = await desk.rollout()
    desk.store.up.clear()
    async with desk.trace(rollout):
        emit_message("mine")
        (span,) = desk.tracer.get_last_trace()
        span.attributes.clear()
        span.name = "changed"
        desk.store.up.set()
    (stored,) = await desk.stored(rollout)
    assert stored.name == "agentlightning.message" and stored.attributes


async def test_flush_waits_for_ended_spans(desk):
    rollout = await desk.rollout()
    async with desk.trace(rollout):
        for index in range(1000):
            desk.tracer.create_span(str(index))
        await desk.tracer.flush()
        assert await desk.names(rollout) == [str(index) for index in range(1000)]
    assert max(map(len, desk.store.batches)) <= 256


@pytest.mark.timing
@pytest.mark.parametrize("error", [StoreUnavailableError, StoreFullError])
async def test_a_store_that_comes_back_gets_everything_in_order(
    desk, caplog: pytest.LogCaptureFixture, error: type[Exception]
):
    desk.store.error = lambda: error("the store is down, or its disk is full")
    rollout = await desk.rollout()
    desk.store.up.clear()
    with caplog.at_level(logging.WARNING):
        async with desk.trace(rollout):
            started = time.monotonic()
            for index in range(50):
                desk.tracer.create_span(str(index))
            assert time.monotonic() - started < 1.0  # the agent does not wait for the store
            while "next try" not in caplog.text:
                await asyncio.sleep(0.01)
            desk.store.up.set()
    assert await desk.names(rollout) == [str(index) for index in range(50)]
    assert [span.sequence_id for span in await desk.stored(rollout)] == list(range(1, 51))


@pytest.mark.parametrize("hang", [False, True])
async def test_a_store_that_stays_down_fails_the_trace(make_desk, hang: bool):
    desk = make_desk(flush_timeout=0.3)
    rollout = await desk.rollout()
    desk.store.up.clear()
    desk.store.hang = hang

    async def run() -> None:
        async with desk.trace(rollout):
            emit_message("one")
            emit_message("two")

    with pytest.raises(StoreUnavailableError, match=r"^2 spans of attempt at-\w+ are not in the"):
        await run()
    assert len(desk.tracer.get_last_trace()) == 2  # the spans are still in memory


async def test_an_agents_own_error_comes_before_the_stores(make_desk):
    desk = make_desk(flush_timeout=0.1)
    rollout = await desk.rollout()
    desk.store.up.clear()

    async def run() -> None:
        async with desk.trace(rollout):
            emit_message("x")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        await run()
    assert "1 spans of attempt" in caught.value.__notes__[0]


async def test_a_permanent_error_is_not_retried(desk):
    desk.store.error = lambda: AttemptNotFoundError("no such attempt")
    desk.store.up.clear()
    rollout = await desk.rollout()

    async def run() -> None:
        async with desk.trace(rollout):
            emit_message("x")

    with pytest.raises(AttemptNotFoundError) as caught:
        await run()
    assert "1 spans of attempt" in caught.value.__notes__[0]


async def test_a_full_buffer_makes_the_agent_wait_for_room(make_desk):
    desk = make_desk(max_buffered=10, max_wait=30.0)
    rollout = await desk.rollout()
    desk.store.up.clear()
    sent: list[int] = []

    def emit() -> None:
        for index in range(30):
            desk.tracer.create_span(str(index))
            sent.append(index)

    async with desk.trace(rollout):
        work = asyncio.create_task(asyncio.to_thread(emit))
        while len(sent) < 10:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(sent) == 10 and not work.done()
        desk.store.up.set()
        await work
    assert await desk.names(rollout) == [str(index) for index in range(30)]


@pytest.mark.timing
async def test_a_full_buffer_gives_the_trace_up_rather_than_the_agent(make_desk):
    desk = make_desk(max_buffered=5, max_wait=0.1, flush_timeout=5.0)
    rollout = await desk.rollout()
    desk.store.up.clear()
    started = time.monotonic()

    async def run() -> None:
        async with desk.trace(rollout):
            for index in range(100):
                desk.tracer.create_span(str(index))

    with pytest.raises(StoreUnavailableError, match=r"^100 spans .* accepted no span .* 0\.1 s"):
        await run()
    assert time.monotonic() - started < 3.0  # waited once, not once per span


async def test_a_reward_waits_for_no_store_no_room_and_no_lock_of_the_export(
    make_desk, monkeypatch: pytest.MonkeyPatch
):
    made: list[TraceRecording] = []

    class Seen(TraceRecording):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)

    monkeypatch.setattr(tracer_module, "TraceRecording", Seen)
    desk = make_desk(max_buffered=1)
    rollout = await desk.rollout()
    desk.store.up.clear()  # calls of the store fail until it is set again

    def rewards() -> None:
        for value in range(20):
            emit_reward(value)

    async with desk.trace(rollout):
        agent = threading.Thread(target=contextvars.copy_context().run, args=(rewards,))
        # What the export holds while it converts and submits, for as long as it likes.
        with made[0]._convert_lock, made[0]._submit_lock:
            agent.start()
            agent.join(timeout=10.0)
            waits = agent.is_alive()
        desk.store.up.set()
        assert not waits
    assert len(await desk.stored(rollout)) == 20


async def test_a_loop_is_never_made_to_wait_for_itself(make_desk, flaky_store):
    desk = make_desk(flaky_store(thread_safe=False), max_buffered=5, max_wait=30.0)
    rollout = await desk.rollout()
    async with desk.trace(rollout):
        for index in range(100):
            desk.tracer.create_span(str(index))
    assert len(await desk.stored(rollout)) == 100


async def test_a_full_buffer_does_not_block_the_loop_that_flushes(
    make_desk, flaky_store, monkeypatch: pytest.MonkeyPatch
):
    class SlowStore(flaky_store):
        def __init__(self) -> None:
            super().__init__()
            self.called, self.goes_on = asyncio.Event(), asyncio.Event()

        async def add_many_spans(self, spans: Any) -> Any:
            self.called.set()
            await self.goes_on.wait()
            return await super().add_many_spans(spans)

    # Only the flush submits.
    monkeypatch.setattr(ExportLoop, "start", lambda *_, **__: None)
    store = SlowStore()
    desk = make_desk(store, max_buffered=5, max_wait=0.1)
    rollout = await desk.rollout()

    async def busy() -> None:
        await store.called.wait()
        for index in range(20):
            desk.tracer.create_span(str(index))
        store.goes_on.set()

    async with desk.trace(rollout):
        desk.tracer.create_span("first")
        await asyncio.gather(desk.tracer.flush(), busy())
    assert len(await desk.stored(rollout)) == 21


async def test_store_calls_are_not_traced(make_desk, flaky_store):
    from opentelemetry import context, trace

    seen: list[tuple[bool, object]] = []

    class TracingStore(flaky_store):
        async def add_many_spans(self, spans):
            suppressed = context.get_value("suppress_instrumentation")
            with trace.get_tracer("http").start_as_current_span("POST") as span:
                seen.append((span.is_recording(), suppressed))
            return await super().add_many_spans(spans)

    desk = make_desk(TracingStore())
    rollout = await desk.rollout()
    async with desk.trace(rollout):
        emit_message("one")
        desk.store.wait_for_spans(1)
        emit_message("two")
        await desk.tracer.flush()
        emit_message("three")
    assert {suppressed for _, suppressed in seen} == {True}
    assert await desk.names(rollout) == ["agentlightning.message"] * 3


async def test_a_worker_torn_down_in_the_middle_of_a_trace_loses_no_span(desk):
    rollout = await desk.rollout()
    async with desk.trace(rollout):
        emit_message("one")
        desk.store.wait_for_spans(1)
        desk.store.up.clear()
        emit_message("two")
        desk.tracer.teardown_worker(0)
        emit_message("three")
        desk.store.up.set()
    assert len(await desk.stored(rollout)) == 3


async def test_a_hanging_store_does_not_keep_the_export_thread(make_desk):
    desk = make_desk(flush_timeout=0.1)
    rollout = await desk.rollout()
    desk.store.up.clear()
    desk.store.hang = True

    async def run() -> None:
        async with desk.trace(rollout):
            emit_message("one")
            await asyncio.sleep(0.05)  # now the export loop is inside its call

    with pytest.raises(StoreUnavailableError):
        await run()
    desk.tracer.teardown_worker(0)
    assert "agl-span-exporter" not in {thread.name for thread in threading.enumerate()}
