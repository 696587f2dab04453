"""The guard vetoes calls, counts violations and takes penalties from rewards."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import agl_core as agl
from agl_core.emitter import get_rewards_from_span
from agl_runner import LitAgentRunner
from agl_scripted import ScriptedModels, real_or_scripted
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer
from guard import Guard, Rule, guarded
from support_agent import POLICY, PROMPTS, TASKS, client, handle
from support_model import answer

EXAMPLE = Path(__file__).parents[3] / "examples" / "guarded_runner"
ORDERED = Rule("order", lambda call, made: call.tool == "eat" and not made, "cook first")


@pytest.fixture(scope="module", autouse=True)
def closed_client() -> Iterator[None]:
    yield
    client().close()


class Meal(agl.LitAgent[str]):
    """Calls tools in order; ``done`` has what they did, ``said`` what they returned."""

    def __init__(self, *calls: str, fails: bool = False) -> None:
        super().__init__()
        self.calls = calls
        self.fails = fails
        self.done: list[str] = []
        self.said: list[str] = []

    def rollout(self, task: str, resources: agl.NamedResources, rollout: agl.Rollout) -> float:
        tools = {tool.__name__: tool for tool in (guarded(self.cook), guarded(self.eat))}
        self.said += [tools[name]() for name in self.calls]
        if self.fails:
            raise ValueError("burnt")
        return 1.0

    def cook(self) -> str:
        self.done.append("cook")
        return "cooked"

    def eat(self) -> str:
        self.done.append("eat")
        return "eaten"


async def rewards_of(agent: Meal, *hooks: agl.Hook) -> dict[str, float]:
    store = InMemoryLightningStore()
    runner = LitAgentRunner[Any](OtelTracer())
    outcome = pytest.raises(ValueError, match="burnt") if agent.fails else nullcontext()
    with runner.run_context(agent=agent, store=store, hooks=hooks), outcome:
        await runner.step("dinner", resources={})
    (rollout,) = (await store.query_rollouts()).items
    spans = (await store.query_spans(rollout.rollout_id)).items
    await store.close()
    assert all(span.rollout_id == rollout.rollout_id for span in spans)
    rules = [span.attributes.get("policy.rule") for span in spans]
    found = {reward.name: reward.value for reward in get_rewards_from_span(spans[-1])}
    assert rules.count("order") == found.get("violations", 0)
    return found


async def test_a_call_that_breaks_a_rule_is_not_made_and_costs_reward():
    agent = Meal("eat", "cook", "eat")
    rewards = await rewards_of(agent, Guard([ORDERED], penalty=0.3))
    assert agent.done == ["cook", "eat"]
    assert agent.said == ["refused by policy: cook first", "cooked", "eaten"]
    assert rewards == {"reward": pytest.approx(0.7), "task": 1.0, "violations": 1.0}


async def test_a_guard_that_does_not_veto_only_counts():
    agent = Meal("eat", "eat")
    rewards = await rewards_of(agent, Guard([ORDERED], vetoes=False))
    assert agent.done == ["eat", "eat"]
    assert agent.said == ["eaten", "eaten"]
    assert rewards == {"reward": 0.5, "task": 1.0, "violations": 1.0}


async def test_an_agent_that_fails_still_gets_its_penalty():
    agent = Meal("eat", fails=True)
    rewards = await rewards_of(agent, Guard([ORDERED]))
    assert agent.done == []
    assert rewards == {"reward": -0.5, "task": 0.0, "violations": 1.0}


async def test_without_the_hook_the_tools_work_as_they_are():
    agent = Meal("eat")
    assert await rewards_of(agent) == {"primary": 1.0}
    assert agent.done == ["eat"]


@pytest.mark.parametrize(
    ("prompt", "vetoes", "rewards"),
    [
        # Looked up and approved after two refusals, in six steps.
        ("fast", True, {"reward": -0.6, "task": 0.4, "violations": 2.0}),
        ("fast", False, {"reward": 0.3, "task": 0.8, "violations": 1.0}),
        ("careful", True, {"reward": 0.6, "task": 0.6, "violations": 0.0}),
    ],
)
async def test_the_agent_under_its_policy(prompt: str, vetoes: bool, rewards: dict[str, float]):
    (task,) = [task for task in TASKS if task["price"] == 450]
    store = InMemoryLightningStore()
    runner = LitAgentRunner[Any](OtelTracer())
    with ScriptedModels(answer) as models:
        resources: agl.NamedResources = {
            "llm": agl.LLM(endpoint=models.base_url, model="m"),
            "prompt": agl.PromptTemplate(template=PROMPTS[prompt], engine="f-string"),
        }
        guard = Guard(POLICY, vetoes=vetoes)
        with runner.run_context(agent=handle, store=store, hooks=[guard]):
            rollout = await runner.step(task, resources=resources)
    spans = (await store.query_spans(rollout.rollout_id)).items
    found = {r.name: r.value for r in get_rewards_from_span(spans[-1])}
    assert found == pytest.approx(rewards)
    await store.close()


def test_runners_in_parallel_keep_their_violations_apart():
    measure = runpy.run_path(str(EXAMPLE / "main.py"))["measure"]
    with real_or_scripted(answer, "m", environ={}) as model:
        fast = measure(model, "fast", "veto")
    # 12 orders are not looked up first, 4 of them above 100 and not approved.
    assert fast["violations"] == 12 + sum(task["price"] > 100 for task in TASKS)
    assert fast["task"] - fast["reward"] == pytest.approx(0.5 * fast["violations"] / 12)
