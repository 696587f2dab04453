"""A whole run: a trainer with a proxy, agents that call it, an algorithm that reads ids."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

import agl_core as agl
from agl_adapters import LlmProxyTraceToTriplet
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels, tokenize


@agl.rollout
async def agent(task: dict[str, Any], llm: agl.LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
        stream = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": task["say"]}], stream=True
        )
        said = [chunk.choices[0].delta.content or "" async for chunk in stream]
    return 1.0 if "".join(said) == f"echo {task['say']}" else 0.0


class Collect(agl.Algorithm):
    """Runs every task once and keeps the triplets."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[list[int], float | None]] = {}

    @agl.with_llm_proxy(required=True)
    async def run(self, llm_proxy: Any, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        await store.add_resources({"llm": llm_proxy.as_resource()})
        rollouts = [await store.enqueue_rollout(task) for task in train_dataset]
        ids = [rollout.rollout_id for rollout in rollouts]
        done = await store.wait_for_rollouts(rollout_ids=ids, timeout=60)
        assert [rollout.status for rollout in done] == ["succeeded"] * len(rollouts)
        for rollout in done:
            spans = (await store.query_spans(rollout.rollout_id)).items  # without a flush before
            (triplet,) = LlmProxyTraceToTriplet().adapt(spans)
            self.found[rollout.input["say"]] = (triplet.response["token_ids"], triplet.reward)


def test_agents_of_a_trainer_are_recorded_by_its_proxy():
    tasks = [{"say": f"word{number}"} for number in range(12)]
    algorithm = Collect()
    with ScriptedModels(
        lambda seen: Reply(f"echo {seen.body['messages'][0]['content']}")
    ) as models:
        params = {"model": "hosted_vllm/Q", "api_base": models.base_url}
        trainer = agl.Trainer(
            algorithm=algorithm,
            n_runners=4,
            strategy="shm",
            llm_proxy={"model_list": [{"model_name": "q", "litellm_params": params}]},
        )
        assert isinstance(trainer.llm_proxy, DirectProxy)
        trainer.fit(agent, tasks)
        assert not trainer.llm_proxy.is_running()
    expected = {
        task["say"]: ([token.id for token in tokenize(f"echo {task['say']}")], 1.0)
        for task in tasks
    }
    assert algorithm.found == expected


def test_evaluations_reach_the_proxy_that_runs_now():
    with ScriptedModels(lambda seen: Reply("echo a")) as models:
        params = {"model": "hosted_vllm/Q", "api_base": models.base_url}
        trainer = agl.Trainer(
            algorithm="baseline",
            strategy="shm",
            llm_proxy={"model_list": [{"model_name": "q", "litellm_params": params}]},
        )
        # Without resources the agent gets the proxy's model.
        first = trainer.evaluate(agent, [{"say": "a"}])
        trainer.fit(agent, [{"say": "a"}])
        # The stored snapshots name the ports of proxies that have stopped.
        latest = trainer.evaluate(agent, [{"say": "a"}])
        named = trainer.evaluate(agent, [{"say": "a"}], resources=first.resources_id)
    assert [one.score().mean for one in (first, latest, named)] == [1.0] * 3
    assert len(models.requests) == 4
