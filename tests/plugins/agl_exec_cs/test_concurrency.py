"""Many rollouts in one runner process of ``cs``."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

import agl_core as agl
from agl_algorithm_kit import run_batch
from agl_core.types import RolloutConfig
from agl_store_memory import InMemoryLightningStore


class Waits(agl.LitAgent[Any]):
    """Returns the number of calls at the same time once all have begun."""

    def __init__(self, together: int) -> None:
        self.together = together
        self.begun = 0

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        self.begun += 1
        async with asyncio.timeout(20):
            while self.begun < self.together:
                await asyncio.sleep(0.02)
        return float(self.begun)


class Dies(Waits):
    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        if rollout.attempt.sequence_id > 1:
            return 1.0
        self.begun += 1
        while self.begun < self.together:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0.0


class Batch(agl.Algorithm):
    def __init__(self, **options: Any) -> None:
        self.options = options

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        batch = await run_batch(store, train_dataset, resources={}, timeout=60, **self.options)
        self.rewards, self.statuses = batch.rewards(), batch.statuses()
        found = [await store.get_latest_attempt(each.rollout.rollout_id) for each in batch]
        self.attempts = [attempt for attempt in found if attempt is not None]


def fit(agent: Any, count: int, algorithm: Batch, **options: Any) -> None:
    trainer = agl.Trainer(
        algorithm=algorithm,
        strategy={"type": "cs", "server_port": 0},
        store=InMemoryLightningStore(),
        **options,
    )
    trainer.fit(agent, list(range(count)))


class Together(Waits):
    concurrent = True


@pytest.mark.parametrize("concurrency", [120, None])
def test_one_process_runs_many_rollouts(concurrency: int | None) -> None:
    count = concurrency or 8  # a concurrent agent has 8 per core unless it is told otherwise
    algorithm = Batch()
    agent = Waits(count) if concurrency else Together(count)
    fit(agent, count, algorithm, concurrency=concurrency)
    assert algorithm.rewards == [float(count)] * count
    assert {attempt.worker_id for attempt in algorithm.attempts} == {"Worker-0"}


def test_all_attempts_of_a_killed_runner_are_failed_and_retried() -> None:
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    algorithm = Batch(config=config)
    fit(Dies(5), 5, algorithm, concurrency=5)
    assert algorithm.statuses == {"succeeded": 5}
    assert {attempt.sequence_id for attempt in algorithm.attempts} == {2}
