"""Measures the cost of a replay per call, in rollouts of 50 calls, beside the agent's own time."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import pytest
from openai import OpenAI

from agl_core import semconv
from agl_core.agent import LitAgent
from agl_core.types import LLM, NamedResources
from agl_proxy_direct import DirectProxy
from agl_replay import replay
from agl_runner import LitAgentRunner
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

pytestmark = pytest.mark.benchmark

CALLS = 50
RUNS = 3


class Caller(LitAgent[str]):
    """Makes calls with a growing conversation, and notes how long they take."""

    seconds = 0.0

    def rollout(self, task: str, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        self.talk(llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id))
        return 1.0

    def talk(self, url: str) -> None:
        messages: list[Any] = [{"role": "user", "content": "Hello"}]
        with OpenAI(base_url=url, api_key="none") as client:
            began = time.perf_counter()
            for turn in range(CALLS):
                done = client.chat.completions.create(model="m", messages=messages)
                messages.append({"role": "assistant", "content": done.choices[0].message.content})
                messages.append({"role": "user", "content": f"turn {turn}"})
            self.seconds = time.perf_counter() - began


def test_cost_of_a_replay() -> None:
    asyncio.run(_measure())


async def _measure() -> None:
    agent, store = Caller(), InMemoryLightningStore()
    bare: list[float] = []
    replayed: list[float] = []
    inside: list[float] = []
    with ScriptedModels(lambda seen: Reply("word " * 50)) as models:
        for _ in range(RUNS):
            await asyncio.to_thread(agent.talk, models.base_url)
            bare.append(agent.seconds)
        params = {"model": "hosted_vllm/m", "api_base": models.base_url}
        entry = {"model_name": "m", "litellm_params": params}
        proxy = DirectProxy(model_list=[entry], store=store)
        await proxy.start()
        runner: LitAgentRunner[str] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
        with runner.run_context(agent=agent, store=store):
            llm: LLM = proxy.as_resource()
            rollout = await runner.step("task", resources={"llm": llm})
        await proxy.stop()
    for _ in range(RUNS):
        result = await replay(agent, rollout.rollout_id, store)
        assert (result.same, result.answered) == (True, CALLS)
        replayed.append(agent.seconds)
        spans = [s for s in result.spans if semconv.REPLAYED_CALL in s.attributes]
        inside += [(s.end_time or 0.0) - (s.start_time or 0.0) for s in spans]
    without, with_replay = (min(times) / CALLS * 1e3 for times in (bare, replayed))
    print(
        f"\na call of {CALLS}: {statistics.median(inside) * 1e3:.2f} ms in the replay's proxy "
        f"(median); with the client {with_replay:.2f} ms, to a scripted server {without:.2f} ms"
    )
