"""Replays of agents that read their endpoint from the environment, which a process has once."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from agl_core.agent import LitAgent
from agl_core.errors import AgentTimeoutError
from agl_core.store import LightningStore
from agl_core.types import LLM, NamedResources, Rollout, RolloutConfig
from agl_replay import fork_requests, read_recording, replay
from agl_replay.environment import environment_for
from agl_runner import LitAgentRunner
from agl_scripted import Reply, ScriptedModels
from agl_store_kit import LightningStoreThreaded
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

HELLO: Any = [{"role": "user", "content": "Hello"}]
MODELS: NamedResources = {"llm": LLM(endpoint="http://h/v1", model="m")}


class Async(LitAgent[Any]):
    """Asks twice; the second answer is the reward."""

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        async with AsyncOpenAI() as client:
            await client.chat.completions.create(model="m", messages=HELLO)
            done = await client.chat.completions.create(model="m", messages=HELLO)
        return float(done.choices[0].message.content or "")


class Sync(LitAgent[Any]):
    """The same."""

    def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        with OpenAI() as client:
            client.chat.completions.create(model="m", messages=HELLO)
            done = client.chat.completions.create(model="m", messages=HELLO)
        return float(done.choices[0].message.content or "")


@pytest.fixture(params=[Async, Sync])
def agent(request: pytest.FixtureRequest) -> LitAgent[Any]:
    return request.param()


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch):
    """A model server that the environment names; its answers take some time, so runs overlap."""
    replies = [Reply(str(number), delay=0.05) for number in range(12)]
    with ScriptedModels(replies) as models:
        monkeypatch.setenv("OPENAI_BASE_URL", models.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield models


async def record(agent: LitAgent[Any], store: LightningStore) -> Rollout:
    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
    with runner.run_context(agent=agent, store=store):
        return await runner.step("x")


def in_a_thread(agent: LitAgent[Any], store: LightningStore) -> threading.Thread:
    """Start a runner in a thread of its own, as the strategy shm does."""

    async def run() -> None:
        runner: LitAgentRunner[Any] = LitAgentRunner(
            OtelTracer(), heartbeat_interval=0, concurrency=2
        )
        with runner.run_context(agent=agent, store=store):
            await runner.iter(until_idle=True)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    return thread


async def test_forks_that_runners_claim_at_once_wait_for_each_other(
    agent: LitAgent[Any], models: ScriptedModels
):
    store = LightningStoreThreaded(InMemoryLightningStore())
    parent = await record(agent, store)
    (attempt,) = await store.query_attempts(parent.rollout_id)
    requests = fork_requests(parent, attempt.attempt_id, at=1, samples=6, on_divergence="ignore")
    forks = await store.enqueue_many_rollouts(requests)
    before = dict(os.environ)
    threads = [in_a_thread(agent, store) for _ in range(3)]
    for thread in threads:
        await asyncio.to_thread(thread.join)
    found = [await store.get_rollout_by_id(one.rollout_id) for one in forks]
    assert [one and one.status for one in found] == ["succeeded"] * 6
    assert len(models.requests) == 2 + 6, "each fork repeats a call and samples another"
    assert dict(os.environ) == before


async def test_replays_at_once_wait_for_each_other(agent: LitAgent[Any], models: ScriptedModels):
    store = InMemoryLightningStore()
    recording = await read_recording(store, (await record(agent, store)).rollout_id)
    results = await asyncio.gather(*(replay(agent, recording) for _ in range(3)))
    assert [(one.same, one.answered) for one in results] == [(True, 2)] * 3
    assert len(models.requests) == 2


async def test_an_agent_that_hangs_keeps_no_other_from_its_turn(models: ScriptedModels):
    store = InMemoryLightningStore()
    recording = await read_recording(store, (await record(Sync(), store)).rollout_id)
    release = threading.Event()

    class Hanging(LitAgent[Any]):
        def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
            release.wait()
            return 0.0

    request = fork_requests(recording.rollout, recording.attempt.attempt_id, at=1)[0]
    config = request.config
    assert isinstance(config, RolloutConfig)
    hung = config.model_copy(update={"timeout_seconds": 0.1})
    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer(), cancel_grace=0.1)
    try:
        with (
            runner.run_context(agent=Hanging(), store=store),
            pytest.raises(AgentTimeoutError),
        ):
            await runner.step("x", config=hung)
        assert os.environ["OPENAI_BASE_URL"] == models.base_url
        assert (await replay(Sync(), recording)).same
    finally:
        release.set()


async def test_who_gives_up_waiting_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://before/v1")
    order: list[str] = []
    entered, left = threading.Event(), asyncio.Event()

    async def use(name: str) -> None:
        async with environment_for({}) as environment:
            assert environment is not None
            environment.set_endpoint(f"http://{name}/v1")
            order.append(os.environ["OPENAI_BASE_URL"])
            if name == "first":
                entered.set()
                await left.wait()

    first = asyncio.create_task(use("first"))
    await asyncio.to_thread(entered.wait)
    second, third = asyncio.create_task(use("second")), asyncio.create_task(use("third"))
    elsewhere = threading.Thread(target=asyncio.run, args=(use("fourth"),))
    await asyncio.sleep(0)  # both are in the queue now
    elsewhere.start()
    second.cancel()
    await asyncio.wait([second])
    async with environment_for(MODELS) as environment:
        assert environment is None, "who needs no turn does not wait"
    left.set()
    await asyncio.gather(first, third)
    await asyncio.to_thread(elsewhere.join)
    assert second.cancelled()
    assert order[0] == "http://first/v1"
    assert sorted(order[1:]) == ["http://fourth/v1", "http://third/v1"]
    assert os.environ["OPENAI_BASE_URL"] == "http://before/v1"


async def test_a_cancelled_fork_does_not_wait_for_its_turn(models: ScriptedModels):
    store = InMemoryLightningStore()
    recording = await read_recording(store, (await record(Async(), store)).rollout_id)
    request = fork_requests(recording.rollout, recording.attempt.attempt_id, at=1)
    (waiting,) = await store.enqueue_many_rollouts(request)
    runner: LitAgentRunner[Any] = LitAgentRunner(
        OtelTracer(), heartbeat_interval=0.05, interval_jitter=0.0
    )
    with runner.run_context(agent=Async(), store=store):
        async with environment_for({}):
            running = asyncio.create_task(runner.iter(until_idle=True))
            while await store.query_rollouts(status_in=["queuing"]):
                await asyncio.sleep(0.01)
            await store.update_rollout(waiting.rollout_id, status="cancelled")
            async with asyncio.timeout(20):
                await running
    (attempt,) = await store.query_attempts(waiting.rollout_id)
    assert "cancelled" in str(attempt.metadata)
    assert len(models.requests) == 2
