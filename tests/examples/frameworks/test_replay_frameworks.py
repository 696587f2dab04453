"""Rollouts of agent frameworks are replayed without a model server, and changes are found."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_core.agent import LitAgent
from agl_core.emitter import operation
from agl_core.types import NamedResources, Rollout
from agl_proxy_direct import DirectProxy
from agl_replay import replay
from agl_runner import LitAgentRunner
from agl_scripted import Reply, ScriptedModels, SeenRequest
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

sys.path.insert(0, str(Path(__file__).parents[2] / "frameworks"))

from framework_agents import tools
from framework_harness import load, weather_script

pytestmark = [
    pytest.mark.heavy,
    # Frameworks warn about their own dependencies, which this project cannot change.
    pytest.mark.filterwarnings("ignore"),
]

FRAMEWORKS = (
    "openai_sdk",
    "openai_stream",
    "anthropic_sdk",
    "langgraph_graph",
    "openai_agents",
    "crewai_crew",
    "autogen",
)
ROLLOUTS = 203
CITIES = tuple(tools.WEATHER)


class Framework(LitAgent[Any]):
    """Runs the agent that a task names, through its framework."""

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        answer = await load(task["framework"]).ask(url.removesuffix("/v1"), task["city"])
        return self.grade(answer, task["city"])

    @operation
    def grade(self, answer: str, city: str) -> float:
        # The script's answers differ, so that a replay with another answer has another reward.
        return len(answer) / 100 + (tools.WEATHER[city] in answer)


def script(seen: SeenRequest) -> Reply:
    reply = weather_script(seen)
    return reply if reply.tool_calls else Reply(f"{reply.text} {'!' * (seen.number % 17)}")


@pytest.fixture(scope="module", autouse=True)
def sockets_collected() -> Iterator[None]:
    """Collect the sockets that frameworks leave open while the filter of this module applies.

    At the end of the session, where pytest collects what is left, a warning is an error again.
    """
    yield
    gc.collect()


@pytest.fixture(scope="module")
def recorded() -> tuple[InMemoryLightningStore, list[Rollout]]:
    """Record the rollouts through a proxy; proxy and model server are gone afterwards."""
    return asyncio.run(record())


async def record() -> tuple[InMemoryLightningStore, list[Rollout]]:
    store = InMemoryLightningStore()
    for framework in FRAMEWORKS:
        load(framework)
    with ScriptedModels(script) as models:
        params = {"model": f"hosted_vllm/{tools.MODEL}", "api_base": models.base_url}
        entry = {"model_name": tools.MODEL, "litellm_params": params}
        proxy = DirectProxy(model_list=[entry], store=store)
        await proxy.start()
        try:
            await store.add_resources({"llm": proxy.as_resource()})
            rollouts = [
                await store.enqueue_rollout(
                    {"framework": FRAMEWORKS[i % 7], "city": CITIES[i // 7 % 2]}
                )
                for i in range(ROLLOUTS)
            ]
            runner: LitAgentRunner[Any] = LitAgentRunner(
                OtelTracer(), heartbeat_interval=0, concurrency=8
            )
            with runner.run_context(agent=Framework(), store=store):
                await runner.iter(until_idle=True)
        finally:
            await proxy.stop()
    return store, rollouts


@pytest.mark.timeout(600)
async def test_replays_repeat_reward_and_spans(
    recorded: tuple[InMemoryLightningStore, list[Rollout]],
):
    store, rollouts = recorded
    wrong: list[str] = []
    seconds: dict[str, float] = dict.fromkeys(FRAMEWORKS, 0.0)
    rewards = set[float | None]()
    for one in rollouts:
        began = time.monotonic()
        result = await replay(Framework(), one.rollout_id, store)
        framework = one.input["framework"]
        seconds[framework] += time.monotonic() - began
        rewards.add(result.reward)
        if not result.same or result.error is not None or result.live:
            shown = [str(result.divergence), repr(result.error), *result.differing_spans]
            wrong.append("\n".join([f"{framework}:", *shown]))
    print(f"\n{len(rollouts)} replayed; seconds: {seconds}")
    assert len(wrong) == 0, "\n\n".join(wrong[:3])
    assert len(rewards) > 8
    assert None not in rewards


CHANGES: dict[str, tuple[str, Any, int, str]] = {
    "prompt": ("INSTRUCTIONS", tools.INSTRUCTIONS + " Be brief.", 1, "messages[0]"),
    "tool result": ("WEATHER", dict.fromkeys(tools.WEATHER, "snow"), 2, "messages["),
    "parameter": ("MODEL", "gpt-4o-mini", 1, "model"),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_found_with_its_place(
    recorded: tuple[InMemoryLightningStore, list[Rollout]],
    monkeypatch: pytest.MonkeyPatch,
    framework: str,
    change: str,
):
    store, rollouts = recorded
    name, value, number, place = CHANGES[change]
    for module in (tools, load(framework)):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    rollout = next(one for one in rollouts if one.input["framework"] == framework)

    result = await asyncio.wait_for(replay(Framework(), rollout.rollout_id, store), 30)

    assert result.divergence is not None
    assert result.divergence.number == number
    assert any(one.place.startswith(place) for one in result.divergence.differences)
