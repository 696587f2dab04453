"""Measures the runner on the memory store, beside a bare loop of the same store calls.

Run ``python tests/benchmark/bench_runner.py``, or ``pytest -m benchmark -s tests/benchmark``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agl_core.agent import LitAgent
from agl_core.emitter import emit_annotation
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

TEXT = "x" * 150


class Sync(LitAgent[int]):
    def __init__(self, spans: int) -> None:
        self.spans = spans

    def rollout(self, task: int, resources: Any, rollout: Any) -> None:
        for index in range(self.spans):
            emit_annotation({"step": index, "text": TEXT})


class Async(Sync):
    async def rollout_async(self, task: int, resources: Any, rollout: Any) -> None:
        self.rollout(task, resources, rollout)


class Reward(LitAgent[int]):
    async def rollout_async(self, task: int, resources: Any, rollout: Any) -> float:
        return 1.0


async def _rate(count: int, once: Callable[[int], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    for task in range(count):
        await once(task)
    return count / (time.perf_counter() - started)


async def store_calls_per_second(count: int = 5000) -> float:
    """Return the rate of a step's store calls alone, which is the limit of this machine."""
    store = InMemoryLightningStore()
    await store.add_resources({})

    async def once(task: int) -> None:
        rollout = await store.start_rollout({"n": task}, worker_id="Worker-0")
        await store.get_latest_resources()
        await store.update_attempt(
            rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded"
        )
        await store.get_rollout_by_id(rollout.rollout_id)

    return await _rate(count, once)


async def steps_per_second(agent: LitAgent[int], count: int) -> tuple[float, float]:
    """Return the rates of step and of iter."""
    store = InMemoryLightningStore()
    await store.add_resources({})
    runner: LitAgentRunner[int] = LitAgentRunner(OtelTracer(), max_rollouts=count)
    with runner.run_context(agent=agent, store=store):
        for task in range(100):
            await runner.step(task)
        stepped = await _rate(count, runner.step)
        for task in range(count):
            await store.enqueue_rollout(task)
        started = time.perf_counter()
        await runner.iter()
        return stepped, count / (time.perf_counter() - started)


async def start_latencies(count: int = 300) -> list[float]:
    """Return the seconds from an enqueue to the agent's start on an idle runner, sorted."""
    store = InMemoryLightningStore()
    await store.add_resources({})
    started: asyncio.Queue[float] = asyncio.Queue()

    class Clock(LitAgent[int]):
        async def rollout_async(self, task: int, resources: Any, rollout: Any) -> None:
            started.put_nowait(time.perf_counter())

    runner: LitAgentRunner[int] = LitAgentRunner(OtelTracer(), max_rollouts=count)
    latencies: list[float] = []
    with runner.run_context(agent=Clock(), store=store):
        running = asyncio.create_task(runner.iter())
        for task in range(count):
            await asyncio.sleep(0.002)
            enqueued = time.perf_counter()
            await store.enqueue_rollout(task)
            latencies.append(await started.get() - enqueued)
        await running
    return sorted(latencies)


@pytest.mark.benchmark
def test_runner() -> None:
    limit = asyncio.run(store_calls_per_second())
    print(f"\n{'':34}{'step/s':>10}{'iter/s':>10}   of the store's calls alone")
    print(f"{'the store alone':34}{limit:10,.0f}")
    cases: list[tuple[str, LitAgent[int], int]] = [
        ("no-op, async", Async(0), 4000),
        ("no-op, sync", Sync(0), 4000),
        ("a returned reward, async", Reward(), 4000),
        ("10 spans, async", Async(10), 2000),
        ("10 spans, sync", Sync(10), 2000),
    ]
    for name, agent, count in cases:
        step, iterated = asyncio.run(steps_per_second(agent, count))
        print(f"{name:34}{step:10,.0f}{iterated:10,.0f}   {step / limit:.0%}")
    latencies = asyncio.run(start_latencies())
    median, p99 = latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)]
    print(f"idle to start: median {median * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms")


if __name__ == "__main__":
    test_runner()
