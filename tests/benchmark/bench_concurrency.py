"""Measures one runner process with 1,000 rollouts at a time: time, memory, and the server's share.

The agent waits 2 seconds. Run ``python tests/benchmark/bench_concurrency.py``, or
``pytest -m benchmark -s tests/benchmark``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Final

import psutil
import pytest

import agl_core as agl
from agl_core.types import EnqueueRolloutRequest

SECONDS: Final = 2.0


class Async(agl.LitAgent[Any]):
    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        await asyncio.sleep(SECONDS)
        return 1.0


class Sync(agl.LitAgent[Any]):
    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        time.sleep(SECONDS)
        return 1.0


class Measured(agl.Algorithm):
    """Enqueues rollouts once the runner is up, and prints what they cost."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        await store.add_resources({})
        while not (await store.query_workers()).total:
            await asyncio.sleep(0.05)
        server = psutil.Process()
        runner = max(server.children(), key=lambda child: child.memory_info().rss)
        before = [_cpu_seconds(server), _cpu_seconds(runner)]
        peak, ended = [0], threading.Event()

        def look() -> None:
            while not ended.wait(0.02):
                peak[0] = max(peak[0], runner.memory_info().rss)

        thread = threading.Thread(target=look)
        thread.start()
        began = time.monotonic()
        requests = [EnqueueRolloutRequest(input=i, mode="train") for i in range(self.count)]
        names = [each.rollout_id for each in await store.enqueue_many_rollouts(requests)]
        done = await store.wait_for_rollouts(rollout_ids=names, timeout=120)
        seconds = time.monotonic() - began
        ended.set()
        thread.join()
        used = [_cpu_seconds(server) - before[0], _cpu_seconds(runner) - before[1]]
        succeeded = sum(rollout.status == "succeeded" for rollout in done)
        print(
            f"{self.name:6}{succeeded:6}{seconds:9.2f}{peak[0] / 2**20:10.0f}"
            f"{used[0] / seconds:10.0%}{used[1] / seconds:10.0%}"
        )


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@pytest.mark.benchmark
def test_a_thousand_rollouts() -> None:
    print(f"\nagent {'done':>6}{'seconds':>9}{'MB':>10}{'server':>10}{'runner':>10}  (of a core)")
    for name, agent in (("async", Async()), ("sync", Sync())):
        trainer = agl.Trainer(
            algorithm=Measured(name, 1000),
            strategy={"type": "cs", "server_port": 0},
            concurrency=1000,
        )
        trainer.fit(agent)


if __name__ == "__main__":
    test_a_thousand_rollouts()
