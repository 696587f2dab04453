"""A training on Ray that loses runners and a node, beside one that nothing disturbs."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import psutil
import pytest

from agl_core.trainer import Trainer
from agl_core.types import PromptTemplate
from agl_exec_ray import RayExecutionStrategy
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_exec_ray.parts import PolicyGradient, actor_processes, make_agent

RUNNERS = 200
PER_ACTOR = 25
STEPS = 5


def train(strategy: Any, seconds: float, on_step: Any = None) -> tuple[PolicyGradient, Trainer]:
    search = PolicyGradient(steps=STEPS, states=40, samples=6, on_step=on_step)
    trainer = Trainer(
        algorithm=search,
        strategy=strategy,
        store=InMemoryLightningStore(),
        concurrency=1,
        initial_resources={"policy": PromptTemplate(template="[]", engine="f-string")},
    )
    trainer.fit(make_agent(seconds), [])
    return search, trainer


@pytest.fixture
def spare_node(cluster: Any) -> Any:
    """A node of the cluster that a test may end."""
    return cluster.add_node(num_cpus=4, object_store_memory=80 * 2**20)


def test_a_training_survives_the_loss_of_a_third_of_its_runners_and_of_a_node(
    cluster: Any, spare_node: Any
) -> None:
    undisturbed, _ = train({"type": "shm", "n_runners": 8, "main_thread": "algorithm"}, 0.001)

    dice = random.Random()
    killed: list[psutil.Process] = []
    disturbances: list[threading.Thread] = []

    def kill_a_third() -> None:
        victims = dice.sample(actor_processes(), k=round(RUNNERS / PER_ACTOR / 3))
        killed.extend(victims)
        for process in victims:
            process.kill()

    def kill_the_node() -> None:
        raylet = psutil.Process(
            spare_node.all_processes["raylet"][0].process.pid  # Ray has no public name for it
        )
        killed.extend(actor_processes([raylet]))
        cluster.remove_node(spare_node, allow_graceful=False)

    def disturb(step: int) -> None:
        action = {1: kill_a_third, 3: kill_the_node}.get(step)
        if action is not None:  # in the middle of the step's rollouts
            disturbances.append(threading.Timer(dice.uniform(0.1, 0.5), action))
            disturbances[-1].start()

    strategy = RayExecutionStrategy(
        n_runners=RUNNERS, runners_per_actor=PER_ACTOR, num_cpus=1.0, graceful_timeout=5
    )
    search, trainer = train(strategy, 0.5, disturb)
    for disturbance in disturbances:
        disturbance.join()

    assert search.policy == undisturbed.policy
    assert search.rewards == undisturbed.rewards
    assert search.rewards[-1] > search.rewards[0] + 0.05  # it learned
    statuses, reasons, workers = asyncio.run(outcome(trainer))
    assert statuses == {"succeeded": STEPS * 40 * 6}
    lost = [reason for reason in reasons if reason == "its runner died"]
    print(f"{len(killed)} processes killed, {len(lost)} attempts lost, {workers} workers")
    assert len(killed) >= 4
    assert lost, "the kills hit no running attempt"
    assert reasons == lost
    assert workers > RUNNERS * 0.6
    assert actor_processes() == []


async def outcome(trainer: Trainer) -> tuple[dict[str, int], list[str], int]:
    """Return the statuses of the rollouts, why attempts failed, and the number of workers."""
    rollouts = await trainer.store.query_rollouts()
    attempts = [
        attempt
        for rollout in rollouts
        for attempt in await trainer.store.query_attempts(rollout.rollout_id)
    ]
    succeeded = Counter(a.rollout_id for a in attempts if a.status == "succeeded")
    assert set(succeeded.values()) == {1}  # each rollout counts once
    reasons = [str((a.metadata or {}).get("error")) for a in attempts if a.status != "succeeded"]
    workers = {attempt.worker_id for attempt in attempts}
    return dict(Counter(each.status for each in rollouts)), reasons, len(workers)
