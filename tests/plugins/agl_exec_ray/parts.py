"""A small training with a simulated agent, and the processes of a Ray cluster."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from collections.abc import Sequence
from typing import Any

import psutil
from ray import cloudpickle

from agl_core.agent import LitAgent, rollout
from agl_core.algorithm import Algorithm
from agl_core.emitter import find_final_reward
from agl_core.types import EnqueueRolloutRequest, PromptTemplate, RolloutConfig
from tests.processes import running_below

ACTIONS = 4
RETRIED = RolloutConfig(max_attempts=20, retry_condition=["failed", "timeout", "unresponsive"])

# Actors cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def make_agent(seconds: float) -> LitAgent[Any]:
    """Return an agent that samples an action from the policy; one action of each task is right."""

    @rollout
    async def simulated(task: dict[str, int], prompt_template: PromptTemplate) -> float:
        weights = [math.exp(x) for x in json.loads(prompt_template.template)[task["state"]]]
        dice = random.Random(f"{task['step']}-{task['state']}-{task['sample']}")
        (action,) = dice.choices(range(ACTIONS), weights)
        await asyncio.sleep(seconds * (0.5 + dice.random()))
        return float(action == task["state"] % ACTIONS)

    return simulated


class PolicyGradient(Algorithm):
    """Raises or lowers one logit per state by the rewards of a step, in the order of the tasks.

    Args:
        steps: Number of updates.
        states: Number of states.
        samples: Rollouts of each state in a step.
        on_step: Called with the number of each step once its rollouts are enqueued.

    Attributes:
        rewards: Mean reward of each step.
        policy: Logits, of shape (states, actions).
    """

    def __init__(self, steps: int, states: int, samples: int, on_step: Any = None) -> None:
        self.steps, self.states, self.samples = steps, states, samples
        self.on_step = on_step
        self.rewards: list[float] = []
        self.policy = [[0.0] * ACTIONS for _ in range(states)]

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        for step in range(self.steps):
            prompt = PromptTemplate(template=json.dumps(self.policy), engine="f-string")
            resources = (await store.add_resources({"policy": prompt})).resources_id
            tasks = [
                {"step": step, "state": state, "sample": sample}
                for state in range(self.states)
                for sample in range(self.samples)
            ]
            queued = await store.enqueue_many_rollouts(
                [
                    EnqueueRolloutRequest(input=task, resources_id=resources, config=RETRIED)
                    for task in tasks
                ]
            )
            if self.on_step is not None:
                self.on_step(step)
            ids = [each.rollout_id for each in queued]
            done = await store.wait_for_rollouts(rollout_ids=ids, timeout=150)
            assert {each.status for each in done} == {"succeeded"}, done
            rewards = [await self._reward(rollout_id) for rollout_id in ids]
            self.rewards.append(sum(rewards) / len(rewards))
            for task, reward in zip(tasks, rewards, strict=True):
                action = task["state"] % ACTIONS
                self.policy[task["state"]][action] += 0.5 * (reward - 0.2)

    async def _reward(self, rollout_id: str) -> float:
        spans = await self.get_store().query_spans(rollout_id, attempt_id="latest")
        reward = find_final_reward(spans)
        assert reward is not None
        return reward


def actor_processes(above: Sequence[psutil.Process] = ()) -> list[psutil.Process]:
    """Return the processes of runners, below this process or below these."""
    roots = [process.pid for process in above] or [None]
    found = {process for root in roots for process in running_below("RunnerHost", root)}
    return sorted(found, key=lambda process: process.pid)
