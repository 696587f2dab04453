"""Measures whole runs: rollouts per second, and the wait of a new task for an idle runner.

The machine's limit is a bare loop that takes tasks from a queue, calls the agent and appends the
reward to a list.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import psutil
import pytest

from agl_core.agent import rollout
from agl_core.algorithm import Algorithm, algo
from agl_core.emitter import emit_annotation
from agl_core.store import LightningStore
from agl_core.trainer import Trainer
from agl_core.types import EnqueueRolloutRequest, PromptTemplate

pytestmark = pytest.mark.benchmark

PROMPT = PromptTemplate(template="{task}", engine="f-string")
started: dict[str, float] = {}


@rollout
async def no_op(task: Any, prompt_template: PromptTemplate) -> float:
    return 1.0


@rollout
def sync_no_op(task: Any, prompt_template: PromptTemplate) -> float:
    return 1.0


@rollout
async def ten_spans(task: Any, prompt_template: PromptTemplate) -> float:
    for index in range(9):  # the returned reward is the tenth span
        emit_annotation({"step": index, "text": "x" * 150})
    return 1.0


@rollout
async def note_the_time(task: Any, prompt_template: PromptTemplate) -> float:
    return time.time() - task  # wall clock: the task was enqueued in another process


class Load(Algorithm):
    """Enqueues some rollouts as a warm-up, then ``count`` rollouts, and measures their time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.first = self.seconds = self.cpu = 0.0
        self._made = time.perf_counter()

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        await store.add_resources({"prompt": PROMPT})
        await self._batch(store, 1)
        self.first = time.perf_counter() - self._made
        await self._batch(store, 64)
        start, cpu = time.perf_counter(), _cpu()
        await self._batch(store, self.count)
        self.seconds, self.cpu = time.perf_counter() - start, _cpu() - cpu

    async def _batch(self, store: LightningStore, count: int) -> None:
        rollouts = await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=i, mode="train") for i in range(count)]
        )
        done = await store.wait_for_rollouts(
            rollout_ids=[rollout.rollout_id for rollout in rollouts], timeout=300
        )
        assert [rollout.status for rollout in done] == ["succeeded"] * count


def _cpu() -> float:
    """Return the CPU seconds of this process and of the runners."""
    here = psutil.Process()
    return sum(sum(p.cpu_times()[:2]) for p in (here, *here.children(recursive=True)))


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def bare_loop(count: int) -> float:
    """Return the rollouts/s of a queue, a coroutine and a list."""

    async def run() -> float:
        queue: asyncio.Queue[int] = asyncio.Queue()
        rewards: list[float] = []
        start = time.perf_counter()
        for index in range(count):
            queue.put_nowait(index)

        async def agent(task: int) -> float:
            return 1.0

        while not queue.empty():
            rewards.append(await asyncio.create_task(agent(await queue.get())))
        return count / (time.perf_counter() - start)

    return asyncio.run(run())


@pytest.mark.parametrize("strategy", ["shm", "cs"])
@pytest.mark.parametrize("agent", [no_op, sync_no_op, ten_spans], ids=lambda a: a.__name__)
def test_throughput(strategy: str, agent: Any) -> None:
    runners = 8 if strategy == "shm" else 4
    load = Load(4000 if agent is not ten_spans else 1500)
    Trainer(algorithm=load, strategy=strategy, n_runners=runners, port=_port(strategy)).fit(agent)
    rate, cpu = load.count / load.seconds, load.cpu / load.count * 1e6
    print(
        f"\n{strategy}, {runners} runners, {agent.__name__}: {rate:,.0f} rollouts/s "
        f"(1/{bare_loop(20000) / rate:.0f} of a bare loop), {cpu:.0f} µs CPU each, "
        f"first one after {load.first:.2f} s"
    )


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_latency(strategy: str) -> None:
    delays: list[float] = []

    @algo
    async def one_at_a_time(store: LightningStore) -> None:
        await store.add_resources({"prompt": PROMPT})
        for index in range(220):
            rollout = await store.enqueue_rollout(time.time())
            await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=30)
            span = (await store.query_spans(rollout.rollout_id))[0]
            if index >= 20:
                delays.append(span.attributes["agentlightning.reward.0.value"])  # pyright: ignore
            await asyncio.sleep(0.002)

    Trainer(algorithm=one_at_a_time, strategy=strategy, n_runners=4, port=_port(strategy)).fit(
        note_the_time
    )
    p50, p99 = (_percentile(delays, share) * 1e3 for share in (0.5, 0.99))
    print(f"\n{strategy}: from enqueue to agent start p50 {p50:.2f} ms, p99 {p99:.2f} ms")


def _port(strategy: str) -> int | None:
    return 0 if strategy == "cs" else None
