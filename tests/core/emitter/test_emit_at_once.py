"""Emitting a reward waits for nobody: not for a store that hangs, nor for who reads from it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from agl_core.emitter import emit_message, emit_reward
from agl_store_kit import LightningStoreThreaded
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

HANG = 5.0
AT_ONCE = 0.25
"""Seconds; what the scheduler of a busy machine takes, not a wait for the store."""


class Hanging(InMemoryLightningStore):
    """A store whose next calls for spans hang, as those of a driver that blocks or that awaits."""

    def __init__(self, how: str, *, draws: bool) -> None:
        super().__init__()
        self.how = how
        self.draws = draws
        self.calls = 0
        self.end = threading.Event()

    async def _hang(self) -> None:
        self.calls += 1
        if self.how == "blocks":
            self.end.wait(HANG)
        else:
            deadline = time.monotonic() + HANG
            while not self.end.is_set() and time.monotonic() < deadline:
                await asyncio.sleep(0.02)

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int | None:
        return super().draw_span_sequence_id(rollout_id, attempt_id) if self.draws else None

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Any) -> Any:
        await self._hang()
        return await super().get_many_span_sequence_ids(rollout_attempt_ids)

    async def add_many_spans(self, spans: Any) -> Any:
        await self._hang()
        return await super().add_many_spans(spans)


def emit(number: int) -> float:
    """Emit rewards, and return the seconds of the longest call."""
    longest = 0.0
    for index in range(number):
        began = time.perf_counter()
        emit_reward(index / number)
        longest = max(longest, time.perf_counter() - began)
        time.sleep(0.005)
    return longest


@pytest.mark.timing
@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("how", ["awaits", "blocks"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_store_that_hangs(how: str, is_async: bool, draws: bool, threaded: bool):
    inner = Hanging(how, draws=draws)
    store = LightningStoreThreaded(inner) if threaded else inner
    claim = await store.start_rollout("task")
    tracer = OtelTracer()
    with tracer.lifespan(store):
        async with tracer.trace_context(
            name="n", rollout_id=claim.rollout_id, attempt_id=claim.attempt.attempt_id
        ):
            longest = emit(50) if is_async else await asyncio.to_thread(emit, 50)
            was_hanging = inner.calls > 0
            inner.end.set()
    assert was_hanging
    assert longest < AT_ONCE
    spans = await store.query_spans(claim.rollout_id)
    assert len(spans) == 50


@pytest.mark.timing
async def test_a_buffer_that_is_full():
    """Other spans wait for room; a reward does not."""
    store = Hanging("awaits", draws=False)
    claim = await store.start_rollout("task")
    tracer = OtelTracer(max_buffered=3, max_wait=1.0)
    with tracer.lifespan(store):
        async with tracer.trace_context(
            name="n", rollout_id=claim.rollout_id, attempt_id=claim.attempt.attempt_id
        ):
            assert await asyncio.to_thread(emit, 20) < AT_ONCE
            threading.Timer(0.5, store.end.set).start()
            began = time.monotonic()
            await asyncio.to_thread(emit_message, "this one waits")
            assert time.monotonic() - began > 0.3
    assert len(await store.query_spans(claim.rollout_id)) == 21


@pytest.mark.timing
async def test_a_long_query_of_the_store_in_memory():
    store = InMemoryLightningStore()
    claim = await store.start_rollout("task")
    tracer = OtelTracer()
    backend: Any = store._backend
    with tracer.lifespan(store):
        async with tracer.trace_context(
            name="n", rollout_id=claim.rollout_id, attempt_id=claim.attempt.attempt_id
        ):
            released = threading.Event()
            held = threading.Event()

            def query() -> None:
                with backend._lock:
                    held.set()
                    released.wait(HANG)

            thread = threading.Thread(target=query)
            thread.start()
            held.wait()
            longest = emit(20)
            released.set()
            thread.join()
    assert longest < AT_ONCE
