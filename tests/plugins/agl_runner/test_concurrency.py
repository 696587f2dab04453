"""Several rollouts in one runner."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextvars import ContextVar
from typing import Any

import pytest

from agl_core.emitter import emit_annotation
from agl_core.errors import ConfigError
from agl_core.status import RUNNING_ATTEMPTS, is_abandoned
from agl_core.types import PromptTemplate, RolloutConfig
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

FAST = {"heartbeat_interval": 0.05, "interval_jitter": 0.0, "cancel_grace": 0.2}


class _Peak:
    """Counts the calls that run at the same time."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_runs_as_many_as_it_may(bench: Any, is_async: bool) -> None:
    peak = _Peak()

    def agent(task: int) -> None:
        with peak:
            time.sleep(0.02)

    async def async_agent(task: int) -> None:
        with peak:
            await asyncio.sleep(0.02)

    runner = await bench.runner(async_agent if is_async else agent, concurrency=5)
    for i in range(12):
        await bench.store.enqueue_rollout(i)
    await runner.iter(until_idle=True)
    assert peak.most == 5
    assert await bench.statuses() == ["succeeded"] * 12


@pytest.mark.parametrize("is_async", [True, False])
async def test_spans_and_context_stay_with_their_attempt(bench: Any, is_async: bool) -> None:
    mine: ContextVar[int] = ContextVar("mine")
    together = threading.Barrier(8) if not is_async else asyncio.Barrier(8)

    async def async_agent(task: int) -> float:
        mine.set(task)
        emit_annotation({"task": task, "at": "begin"})
        assert isinstance(together, asyncio.Barrier)
        await together.wait()
        emit_annotation({"task": mine.get(), "at": "end"})
        return float(task)

    def agent(task: int) -> float:
        mine.set(task)
        emit_annotation({"task": task, "at": "begin"})
        assert isinstance(together, threading.Barrier)
        together.wait(5)
        emit_annotation({"task": mine.get(), "at": "end"})
        return float(task)

    runner = await bench.runner(async_agent if is_async else agent, concurrency=8)
    for i in range(8):
        await bench.store.enqueue_rollout(i)
    await asyncio.wait_for(runner.iter(until_idle=True), 10)
    for rollout in await bench.store.query_rollouts():
        spans = await bench.store.query_spans(rollout.rollout_id)
        assert [s.attributes.get("task") for s in spans][:2] == [rollout.input, rollout.input]
        assert [s.attributes.get("at") for s in spans][:2] == ["begin", "end"]
        assert len(spans) == 3
        assert len({span.trace_id for span in spans}) <= 2  # a returned reward has its own


async def test_one_cancelled_rollout_stops_alone(bench: Any, until: Any) -> None:
    stopped: list[int] = []
    proceed = asyncio.Event()

    async def agent(task: int) -> None:
        try:
            await proceed.wait()
        except asyncio.CancelledError:
            stopped.append(task)
            raise

    runner = await bench.runner(agent, concurrency=4, **FAST)
    rollouts = [await bench.store.enqueue_rollout(i) for i in range(4)]
    running = asyncio.create_task(runner.iter(until_idle=True))
    await until(lambda: len(runner._worker().oversight.running()) == 4)
    await bench.store.update_rollout(rollouts[2].rollout_id, status="cancelled")
    await until(lambda: stopped == [2])
    proceed.set()
    await asyncio.wait_for(running, 5)
    assert await bench.statuses() == ["succeeded", "succeeded", "cancelled", "succeeded"]
    assert stopped == [2]


async def test_a_timeout_ends_one_attempt_only(bench: Any) -> None:
    async def agent(task: float) -> None:
        await asyncio.sleep(task)

    runner = await bench.runner(agent, concurrency=2, cancel_grace=0.1)
    await bench.store.enqueue_rollout(30.0, config=RolloutConfig(timeout_seconds=0.1))
    await bench.store.enqueue_rollout(0.2)
    await asyncio.wait_for(runner.iter(until_idle=True), 5)
    assert await bench.statuses() == ["failed", "succeeded"]


async def test_heartbeats_list_every_attempt(bench: Any, until: Any) -> None:
    """Otherwise a resumed algorithm takes all but the last claim for lost."""
    proceed = asyncio.Event()

    async def agent(task: int) -> None:
        await proceed.wait()

    runner = await bench.runner(agent, concurrency=3, **FAST)
    for i in range(3):
        await bench.store.enqueue_rollout(i)
    running = asyncio.create_task(runner.iter(until_idle=True))
    await until(lambda: len(runner._worker().oversight.running()) == 3)
    attempts = [rollout.attempt for rollout in await bench.store.query_rollouts()]
    worker = await bench.store.get_worker_by_id("Worker-0")
    assert not any(is_abandoned(worker, attempt) for attempt in attempts), "also before a beat"

    async def listed() -> list[str]:
        worker = await bench.store.get_worker_by_id("Worker-0")
        return sorted(worker.heartbeat_stats[RUNNING_ATTEMPTS])

    while await listed() != sorted(attempt.attempt_id for attempt in attempts):
        await asyncio.sleep(0.01)
    proceed.set()
    await asyncio.wait_for(running, 5)


async def test_a_cancelled_iteration_ends_every_attempt(bench: Any, until: Any) -> None:
    async def agent(task: int) -> None:
        await asyncio.sleep(60)

    runner = await bench.runner(agent, concurrency=3, **FAST)
    for i in range(5):
        await bench.store.enqueue_rollout(i)
    running = asyncio.create_task(runner.iter())
    await until(lambda: len(runner._worker().oversight.running()) == 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5)
    assert await bench.statuses() == ["failed"] * 3 + ["queuing"] * 2


async def test_a_keyboard_interrupt_of_one_agent_ends_the_others(bench: Any) -> None:
    async def agent(task: int) -> None:
        await asyncio.sleep(0.05 if task == 1 else 60)
        raise KeyboardInterrupt

    runner = await bench.runner(agent, concurrency=3, **FAST)
    for i in range(4):
        await bench.store.enqueue_rollout(i)
    with pytest.raises(KeyboardInterrupt):
        await runner.iter()
    assert await bench.statuses() == ["failed"] * 3 + ["queuing"]


async def test_max_rollouts_counts_the_claimed(bench: Any) -> None:
    async def agent(task: int) -> None:
        await asyncio.sleep(0.01)

    runner = await bench.runner(agent, concurrency=4, max_rollouts=6)
    for i in range(9):
        await bench.store.enqueue_rollout(i)
    await asyncio.wait_for(runner.iter(), 5)
    assert await bench.statuses() == ["succeeded"] * 6 + ["queuing"] * 3


async def test_resources_of_one_claim_are_read_once_and_not_shared(bench: Any) -> None:
    class Counting(InMemoryLightningStore):
        reads = 0

        async def get_resources_by_id(self, resources_id: str) -> Any:
            self.reads += 1
            return await super().get_resources_by_id(resources_id)

    bench.store = store = Counting()
    await store.update_resources("v1", {"p": PromptTemplate(template="a", engine="f-string")})
    seen: list[str] = []

    from agl_core.agent import LitAgent

    class Agent(LitAgent[Any]):
        async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> None:
            await asyncio.sleep(0.01)
            seen.append(resources["p"].template)
            resources["p"].template = "changed"

    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer(), concurrency=8)
    for i in range(8):
        await store.enqueue_rollout(i, resources_id="v1")
    with runner.run_context(agent=Agent(), store=store):
        await asyncio.wait_for(runner.iter(until_idle=True), 5)
        assert seen == ["a"] * 8
        assert store.reads == 1
        await store.update_resources("v1", {"p": PromptTemplate(template="b", engine="f-string")})
        await store.enqueue_rollout(8, resources_id="v1")
        await asyncio.wait_for(runner.iter(until_idle=True), 5)
    assert seen[-1] == "b"


async def test_an_agent_that_blocks_the_loop_is_named_once(
    bench: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl_runner.slots._PATIENCE", 0.05)

    async def blocks(task: int) -> None:
        await asyncio.sleep(0)
        time.sleep(0.3)

    runner = await bench.runner(blocks, concurrency=4)
    for i in range(2):
        await bench.store.enqueue_rollout(i)
    with caplog.at_level(logging.WARNING):
        await runner.iter(until_idle=True)
    (line,) = [r.getMessage() for r in caplog.records if "event loop" in r.getMessage()]
    assert ".blocks (" in line
    assert "test_concurrency.py:" in line


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "4"])
def test_an_invalid_concurrency_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="concurrency: should be"):
        LitAgentRunner(OtelTracer(), concurrency=value)
