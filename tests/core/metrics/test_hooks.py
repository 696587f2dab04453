"""What is measured, and where: stores, rollouts, attempts, steps, runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agl_algorithm_kit import run_batch
from agl_core.agent import rollout
from agl_core.algorithm import Algorithm
from agl_core.errors import RolloutNotFoundError
from agl_core.metrics import MeasureCalls, recording, sampled
from agl_core.store import intercept
from agl_core.trainer import Trainer
from agl_core.types import PromptTemplate, RolloutConfig
from agl_store_memory import InMemoryLightningStore
from agl_tracer_dummy import DummyTracer
from tests.core.metrics.held import Held

PROMPT = PromptTemplate(template="{task}", engine="f-string")


@pytest.fixture
def held():
    backend = Held()
    with recording(backend):
        yield backend


async def test_calls_of_a_store_are_counted_and_timed(held):
    store = intercept(InMemoryLightningStore(), MeasureCalls())
    await store.enqueue_rollout({"n": 1})
    with pytest.raises(RolloutNotFoundError):
        await store.update_attempt("ro-none", "latest", status="succeeded")
    await store.dequeue_rollout()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(store.dequeue_rollout(wait=5), 0.05)
    labels = ("enqueue_rollout", "enqueue_rollout", "OK")
    assert held.values["agl.store.total", *labels] == [1]
    (seconds,) = held.values["agl.store.latency", *labels]
    assert 0 < seconds < 1
    error = ("update_attempt", "update_attempt", "RolloutNotFoundError")
    assert held.values["agl.store.total", *error] == [1]
    waited = ("dequeue_rollout", "dequeue_rollout", "CancelledError")
    assert held.values["agl.store.latency", *waited][0] > 0.02


async def test_rollouts_are_counted_when_they_end_whoever_ends_them(held):
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    done = await store.enqueue_rollout(1, mode="train")
    cancelled = await store.enqueue_rollout(2)
    late = await store.enqueue_rollout(3, mode="val", config=RolloutConfig(timeout_seconds=0.01))
    for _ in range(3):
        await store.dequeue_rollout()
    await store.update_attempt(done.rollout_id, "latest", status="succeeded")
    await store.update_attempt(done.rollout_id, "latest", metadata={"more": 1})
    await store.update_rollout(cancelled.rollout_id, status="cancelled")
    await asyncio.sleep(0.02)
    await store.run_watchdog()
    (ended,) = await store.wait_for_rollouts(rollout_ids=[late.rollout_id], timeout=0)
    assert ended.status == "failed"
    counted = {k[1:]: v for k, v in held.values.items() if k[0] == "agl.rollouts.total"}
    assert counted == {
        ("succeeded", "train"): [1],
        ("cancelled", "unknown"): [1],
        ("failed", "val"): [1],
    }
    assert held.values["agl.rollouts.duration", "failed", "val"][0] >= 0.01


async def test_the_queue_and_the_workers_are_sampled(held):
    store = InMemoryLightningStore()
    for n in range(3):
        await store.enqueue_rollout(n)
    await store.dequeue_rollout(worker_id="w1")
    async with sampled(store):
        await asyncio.sleep(0.02)
    assert held.values["agl.queue.length",] == [2]
    assert held.values["agl.workers", "busy"] == [1]
    assert held.values["agl.workers", "idle"] == [0]
    assert held.values["agl.workers.lost",] == [0]


async def test_of_the_silent_workers_only_those_with_an_attempt_are_lost(held, monkeypatch):
    store = InMemoryLightningStore()
    await store.enqueue_rollout(1)
    await store.dequeue_rollout(worker_id="killed")
    await store.dequeue_rollout(worker_id="ended")
    later = await store.now() + 3600

    async def now() -> float:
        return later

    monkeypatch.setattr(store, "now", now)
    async with sampled(store):
        await asyncio.sleep(0.02)
    assert held.values["agl.workers", "unknown"] == [2]
    assert held.values["agl.workers.lost",] == [1]


async def test_nothing_is_sampled_without_a_backend():
    async with sampled(InMemoryLightningStore()):
        assert not [t for t in asyncio.all_tasks() if t.get_name() == "agl-metrics"]


@rollout
def agent(task: Any, prompt_template: PromptTemplate) -> float:
    if task < 0:
        raise ValueError("negative")
    return {1: -0.5}.get(task, float(task))


class OneBatch(Algorithm):
    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        resources = self.get_initial_resources()
        await run_batch(self.get_store(), train_dataset, resources=resources, mode="train")
        self.report_step(0, {"reward": 0.5})
        self.report_step(1, {"reward": 0.75})


def test_a_trainer_records_its_run():
    held = Held()
    trainer = Trainer(
        algorithm=OneBatch(),
        strategy="shm",
        tracer=DummyTracer(),
        initial_resources={"prompt": PROMPT},
        tracker=[held],
    )
    trainer.fit(agent, [1, 2, -1])
    values = held.values
    assert values["agl.attempts.total", "succeeded", "train"] == [1, 1]
    assert values["agl.attempts.total", "failed", "train"] == [1]
    assert len(values["agl.attempts.duration", "succeeded", "train"]) == 2
    assert sorted(values["agl.attempts.reward", "train"]) == [-0.5, 2]
    assert sorted(values["agl.rewards.sum", "train", "positive"]) == [0, 2]
    assert sorted(values["agl.rewards.sum", "train", "negative"]) == [0, 0.5]
    assert values["agl.rollouts.total", "succeeded", "train"] == [1, 1]
    assert values["agl.algorithm.steps", "OneBatch"] == [1, 1]
    assert values["agl.algorithm.value", "OneBatch", "reward"] == [0.5, 0.75]
    assert values["agl.runs.total", "OK", "fit"] == [1]
    assert values["agl.queue.length",]
    assert any(key[:2] == ("agl.store.total", "update_attempt") for key in values)
    assert held.closed == 1
    assert isinstance(trainer.store, InMemoryLightningStore)


def test_a_failed_run_has_the_name_of_its_error():
    held = Held()

    class Fails(Algorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            raise LookupError("no data")

    with pytest.raises(LookupError):
        Trainer(algorithm=Fails(), strategy="shm", tracker=held).fit(agent, [1])
    assert held.values["agl.runs.total", "LookupError", "fit"] == [1]
