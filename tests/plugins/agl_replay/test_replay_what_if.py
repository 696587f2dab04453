"""Counterfactual prompts: a rollout continued from a turn with another prompt."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

import agl_core as agl
from agl_core.agent import LitAgent
from agl_core.errors import ConfigError
from agl_core.types import LLM, NamedResources, PromptTemplate, Rollout
from agl_replay import what_if
from agl_runner import LitAgentRunner
from agl_scripted import Reply, ScriptedModels, SeenRequest
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer


class Guesser(LitAgent[Any]):
    """Asks three times with one system prompt; the last answer decides the reward."""

    @agl.operation(record=True)
    def note(self, said: str) -> str:
        return said.upper()

    def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        prompt: Any = resources["prompt"]
        base = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        messages: list[Any] = [{"role": "system", "content": prompt.format(task=task)}]
        answer = ""
        with OpenAI(base_url=base, api_key="none") as client:
            for turn in range(3):
                messages.append({"role": "user", "content": f"turn {turn + 1}"})
                done = client.chat.completions.create(model=llm.model, messages=messages)
                answer = done.choices[0].message.content or ""
                messages.append({"role": "assistant", "content": self.note(answer)})
        return float(answer == "right")


def prompt(text: str) -> PromptTemplate:
    return PromptTemplate(template=text, engine="f-string")


def obedient(seen: SeenRequest) -> Reply:
    """Answer rightly at the third turn if the prompt asks for it."""
    messages = seen.body["messages"]
    last = messages[-1]["content"] == "turn 3"
    return Reply("right" if last and "careful" in messages[0]["content"] else "wrong")


@pytest.fixture
async def recorded(store: InMemoryLightningStore) -> Rollout:
    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
    with (
        ScriptedModels([Reply("a"), Reply("b"), Reply("c")]) as models,
        runner.run_context(agent=Guesser(), store=store),
    ):
        llm = LLM(endpoint=models.base_url, model="m")
        return await runner.step("x", resources={"llm": llm, "prompt": prompt("Guess {task}.")})


@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_the_changed_prompt_acts_from_its_turn_on(
    store: InMemoryLightningStore, recorded: Rollout, turn: int
):
    latest = await store.get_latest_resources()
    with ScriptedModels(obedient) as models:
        entry = {"model": "hosted_vllm/m", "api_base": models.base_url}
        found = await what_if(
            Guesser(),
            recorded.rollout_id,
            store,
            resources={"prompt": prompt("Be careful: {task}.")},
            turn=turn,
            samples=2,
            model_list=[{"model_name": "m", "litellm_params": entry}],
        )
        asked = [seen.body["messages"] for seen in models.requests]
    assert [one.error for one in (*found.factual, *found.counterfactual)] == [None] * 4
    assert (found.rewards, found.change) == ((0.0, 1.0), 1.0)
    live = 4 - turn
    assert [one.live for one in (*found.factual, *found.counterfactual)] == [live] * 4
    assert [one.answered for one in found.counterfactual] == [turn - 1] * 2
    half = len(asked) // 2
    assert {messages[0]["content"] for messages in asked[:half]} == {"Guess x."}
    assert {messages[0]["content"] for messages in asked[half:]} == {"Be careful: x."}
    repeated = [message["content"] for message in asked[half][1:] if message["role"] != "user"]
    assert repeated == ["A", "B"][: turn - 1], "answers before the turn are the recorded ones"
    after = await store.get_latest_resources()
    assert latest is not None
    assert after is not None
    assert after.resources_id == latest.resources_id
    assert len(await store.query_rollouts()) == 1


class Dated(Guesser):
    """Puts into its prompt what is never the same again, as the time is."""

    runs = 0

    def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        self.runs += 1
        return super().rollout(f"{task}, run {self.runs}", resources, rollout)


async def test_neither_side_is_refused_for_what_differs_in_each_run(
    store: InMemoryLightningStore, recorded: Rollout
):
    """A side that was refused would count as worse than the other, whatever the prompt."""
    with ScriptedModels(obedient) as models:
        entry = {"model": "hosted_vllm/m", "api_base": models.base_url}
        found = await what_if(
            Dated(),
            recorded.rollout_id,
            store,
            resources={"prompt": prompt("Guess at once: {task}.")},
            turn=3,
            samples=2,
            model_list=[{"model_name": "m", "litellm_params": entry}],
        )
    both = (*found.factual, *found.counterfactual)
    assert [(one.error, one.answered, one.live) for one in both] == [(None, 2, 1)] * 4
    assert (found.rewards, found.change) == ((0.0, 0.0), 0.0)


async def test_turns_and_names_that_are_not_there_are_refused(
    store: InMemoryLightningStore, recorded: Rollout
):
    ids = recorded.rollout_id
    with pytest.raises(ConfigError, match="the rollout has the turns 1 to 3, not 4"):
        await what_if(Guesser(), ids, store, resources={}, turn=4)
    with pytest.raises(ConfigError, match=r"has no hint \(it has: llm, prompt\)"):
        await what_if(Guesser(), ids, store, resources={"hint": prompt("x")}, turn=1)
