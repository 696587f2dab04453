"""Forks repeat the first calls of a rollout, and sample the rest from the live model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from openai import AsyncOpenAI

from agl_adapter_trajectory import TraceToTrajectory
from agl_adapters import LlmProxyTraceToTriplet, TracerTraceToTriplet
from agl_core import semconv
from agl_core.agent import LitAgent
from agl_core.types import LLM, NamedResources, Rollout, RolloutConfig, Span
from agl_proxy_direct import DirectProxy
from agl_replay import NotReplayableError, fork, fork_requests, fork_requests_at
from agl_runner import LitAgentRunner
from agl_scripted import Reply, ScriptedModels, SeenRequest
from agl_store_memory import InMemoryLightningStore
from agl_testing.ports import held_port
from agl_tracer_otel import OtelTracer

Record = Callable[..., Awaitable[Rollout]]


class Talker(LitAgent[str]):
    """Talks with its model for some turns; the last answer is the reward."""

    def __init__(self, turns: int = 3, greeting: str = "Hello") -> None:
        super().__init__()
        self.turns = turns
        self.greeting = greeting

    async def rollout_async(self, task: str, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        messages: list[Any] = [{"role": "user", "content": f"{self.greeting} {task}"}]
        async with AsyncOpenAI(base_url=url, api_key=llm.api_key or "none") as client:
            for turn in range(self.turns):
                done = await client.chat.completions.create(model=llm.model, messages=messages)
                answer = done.choices[0].message.content
                messages.append({"role": "assistant", "content": answer})
                messages.append({"role": "user", "content": f"turn {turn}"})
        return float(str(answer).rpartition(" ")[2])


class Counter:
    """Answers with a number that grows with each call, so that no two answers are equal."""

    def __init__(self, start: int) -> None:
        self.number = start

    def __call__(self, seen: SeenRequest) -> Reply:
        self.number += 1
        return Reply(f"the answer is {self.number}")


class Reader(LitAgent[str]):
    """Asks twice where ``OPENAI_BASE_URL`` says; it takes nothing from its resources."""

    async def rollout_async(self, task: str, resources: NamedResources, rollout: Any) -> float:
        answer = ""
        async with AsyncOpenAI() as client:
            for _ in range(2):
                message: Any = {"role": "user", "content": f"{task} {answer}"}
                done = await client.chat.completions.create(model="m", messages=[message])
                answer = done.choices[0].message.content or ""
        return float(answer.rpartition(" ")[2])


def calls_of(spans: Any) -> list[Span]:
    return [span for span in spans if span.name == semconv.SPAN_MODEL_CALL]


def live_models(models: ScriptedModels, *names: str) -> list[dict[str, Any]]:
    params = {"model": "hosted_vllm/m", "api_base": models.base_url}
    return [{"model_name": name, "litellm_params": params} for name in names or ("m",)]


async def test_a_fork_repeats_calls_and_samples_the_rest(
    record: Record, store: InMemoryLightningStore
):
    parent = await record(Talker(), Counter(0))
    recorded = calls_of(await store.query_spans(parent.rollout_id))

    with ScriptedModels(Counter(10)) as models:
        forks = await fork(
            Talker(), parent.rollout_id, store, at=2, samples=3, model_list=live_models(models)
        )
        assert len(models.requests) == 3

    rewards = set[float]()
    for one in forks:
        assert one.status == "succeeded"
        assert one.config.replay is not None
        assert (one.config.replay.rollout_id, one.config.replay.until) == (parent.rollout_id, 2)
        spans = list(await store.query_spans(one.rollout_id))
        calls = calls_of(spans)
        assert [call.attributes.get(semconv.REPLAYED_CALL) for call in calls] == [1, 2, None]
        for key in ("prompt_token_ids", "response_token_ids", "logprobs.content"):
            now = [call.attributes[key] for call in calls[:2]]
            assert now == [call.attributes[key] for call in recorded[:2]]
            assert calls[2].attributes[key]
        rewards |= {span.attributes["agentlightning.reward.0.value"] for span in spans[-1:]}  # type: ignore[misc]
    assert rewards == {11.0, 12.0, 13.0}


@pytest.mark.parametrize("names", [["m"], ["other"], ["other", "m"]])
async def test_a_fork_stores_no_resources(
    record: Record, store: InMemoryLightningStore, names: list[str]
):
    """Live agents get the latest resources, and those of a fork would name its ended proxy."""
    parent = await record(Talker(), Counter(0))
    await store.add_resources({"llm": LLM(endpoint="http://live/v1", model="live")})
    latest = await store.get_latest_resources()
    with ScriptedModels(Counter(10)) as models:
        live = live_models(models, *names)
        (one,) = await fork(Talker(), parent.rollout_id, store, at=2, model_list=live)
        assert len(models.requests) == 1
    assert (one.status, one.resources_id) == ("succeeded", parent.resources_id)
    assert await store.get_latest_resources() == latest
    assert len(await store.query_resources()) == 2


async def test_forks_of_an_agent_that_reads_its_endpoint_repeat_its_calls(
    store: InMemoryLightningStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    runner: LitAgentRunner[str] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
    with ScriptedModels(Counter(0)) as models, runner.run_context(agent=Reader(), store=store):
        monkeypatch.setenv("OPENAI_BASE_URL", models.base_url)
        parent = await runner.step("Bob")
    # A rollout without resources runs with the latest ones, which this agent does not use.
    await store.add_resources({"llm": LLM(endpoint="http://live/v1", model="live")})
    with ScriptedModels(Counter(10)) as models:
        (one,) = await fork(
            Reader(), parent.rollout_id, store, at=1, model_list=live_models(models)
        )
        assert [seen.body["messages"][0]["content"] for seen in models.requests] == [
            "Bob the answer is 1"
        ]
    assert one.status == "succeeded"
    calls = calls_of(await store.query_spans(one.rollout_id))
    assert calls[-1].attributes["response_token_ids"], "the live proxy records its calls"


async def test_repeated_calls_are_in_no_training_row(record: Record, store: InMemoryLightningStore):
    parent = await record(Talker(), Counter(0))
    with ScriptedModels(Counter(10)) as models:
        (one,) = await fork(
            Talker(), parent.rollout_id, store, at=2, model_list=live_models(models)
        )
    spans = list(await store.query_spans(one.rollout_id))
    last = calls_of(spans)[-1]

    (row,), report = TraceToTrajectory().adapt_with_report(spans)
    response: Any = last.attributes["response_token_ids"]
    prompt: Any = last.attributes["prompt_token_ids"]
    assert row.token_ids == [*prompt, *response]
    assert sum(row.mask) == len(response)
    assert row.prompt_length == len(prompt)
    assert (row.reward, len(row.responses)) == (11.0, 1)
    assert "repeats a recorded call" in str(report)

    for adapter in (TracerTraceToTriplet(llm_call_match=None), LlmProxyTraceToTriplet()):
        (triplet,) = adapter.adapt(spans)
        assert triplet.response["token_ids"] == list(response)


async def test_a_fork_of_no_call_is_a_new_rollout(record: Record, store: InMemoryLightningStore):
    parent = await record(Talker(), Counter(0))
    with ScriptedModels(Counter(10)) as models:
        (one,) = await fork(
            Talker(), parent.rollout_id, store, at=0, model_list=live_models(models)
        )
        assert len(models.requests) == 3
    assert len(calls_of(await store.query_spans(one.rollout_id))) == 3


async def test_a_fork_whose_agent_asks_something_else_fails(
    record: Record, store: InMemoryLightningStore
):
    parent = await record(Talker(), Counter(0))
    with ScriptedModels(Counter(10)) as models:
        (one,) = await fork(
            Talker(greeting="Hi"), parent.rollout_id, store, at=2, model_list=live_models(models)
        )
        assert not models.requests
    (attempt,) = await store.query_attempts(one.rollout_id)
    assert one.status == "failed"
    assert "call 1 differs from the recorded one" in str(attempt.metadata)


@pytest.mark.parametrize("live", [True, False])
async def test_a_fork_whose_model_does_not_answer_is_not_queued_again(
    store: InMemoryLightningStore, live: bool
):
    """Nobody is left to run it, except another agent that takes work from the store later."""
    with ScriptedModels(Counter(0)) as models:
        runner: LitAgentRunner[str] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
        retries = RolloutConfig(max_attempts=3, retry_condition=["failed"])
        with runner.run_context(agent=Talker(), store=store):
            llm = LLM(endpoint=models.base_url, model="m")
            parent = await runner.step("Bob", resources={"llm": llm}, config=retries)
        gone = live_models(models) if live else None
    with held_port(urlsplit(models.base_url).port or 0):
        (one,) = await fork(Talker(), parent.rollout_id, store, at=2, model_list=gone)
    assert one.status == "failed"
    assert await store.dequeue_rollout() is None


@pytest.mark.parametrize("auth", [None, "a-secret-of-this-test-only-0123456789"])
async def test_runners_of_a_training_run_forks_of_its_queue(
    store: InMemoryLightningStore, auth: str | None
):
    """The run's own proxy records the live calls, with the version of its weights."""
    with ScriptedModels(Counter(0)) as models:
        proxy = DirectProxy(model_list=live_models(models), store=store, auth_token=auth)
        await proxy.start()
        proxy.set_model_version("step-7")
        try:
            await store.add_resources({"llm": proxy.as_resource()})
            parent = await store.enqueue_rollout("Bob", mode="train")
            await _run_queue(store, proxy)
            (attempt,) = await store.query_attempts(parent.rollout_id)
            requests = fork_requests(parent, attempt.attempt_id, at=1, samples=4)
            name = parent.rollout_id
            second = calls_of(await store.query_spans(name))[1]
            at_call = await fork_requests_at(store, name, span_id=second.span_id, samples=4)
            assert [one.config for one in at_call] == [one.config for one in requests]
            with pytest.raises(NotReplayableError, match="no call of the span ff"):
                await fork_requests_at(store, name, span_id="ff")
            forks = await store.enqueue_many_rollouts(requests)
            await _run_queue(store, proxy)
        finally:
            await proxy.stop()
        assert len(models.requests) == 3 + 4 * 2
    for one in forks:
        found = await store.get_rollout_by_id(one.rollout_id)
        assert found is not None
        assert (found.status, found.mode) == ("succeeded", "train")
        calls = calls_of(await store.query_spans(one.rollout_id))
        assert [call.attributes.get(semconv.REPLAYED_CALL) for call in calls] == [1, None, None]
        versions = [call.attributes.get(semconv.MODEL_VERSION) for call in calls]
        assert versions == [None, "step-7", "step-7"]
        assert all(call.attributes["response_token_ids"] for call in calls)


async def _run_queue(store: InMemoryLightningStore, proxy: DirectProxy) -> None:
    runner: LitAgentRunner[str] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
    runner.init(agent=Talker(), llm_proxy=proxy)
    runner.init_worker(0, store)
    try:
        await runner.iter(until_idle=True)
    finally:
        runner.teardown_worker(0)
        runner.teardown()


async def test_a_fork_uses_the_recorded_models(store: InMemoryLightningStore):
    """Without a proxy, the tracer records the live calls."""
    with ScriptedModels(Counter(0)) as models:
        runner: LitAgentRunner[str] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
        with runner.run_context(agent=Talker(), store=store):
            llm = LLM(endpoint=models.base_url, model="m")
            parent = await runner.step("Bob", resources={"llm": llm})
        (one,) = await fork(Talker(), parent.rollout_id, store, at=2)
        assert len(models.requests) == 4
    assert one.status == "succeeded"
    spans = list(await store.query_spans(one.rollout_id))
    assert sum(span.name == "openai.chat.completion" for span in spans) == 3
    assert len(TracerTraceToTriplet(llm_call_match=None).adapt(spans)) == 1


async def test_a_runner_replays(record: Record, store: InMemoryLightningStore):
    parent = await record(Talker(), Counter(0))
    runner: LitAgentRunner[str] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
    with runner.run_context(agent=Talker(), store=store):
        result = await runner.replay(parent.rollout_id)
        assert (result.same, result.answered) == (True, 3)
        stopped = await runner.replay(parent.rollout_id, until=1)
        assert (stopped.stopped, stopped.answered) == (True, 1)
