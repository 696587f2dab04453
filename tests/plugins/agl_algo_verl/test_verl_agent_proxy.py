"""The proxy in front of the servers, which holds calls during updates; and dead servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import openai
import pytest

from agl_algo_verl.agent_proxy import AgentProxy, model_list
from agl_algo_verl.health import HealthWatch
from agl_core.errors import ConfigError, LLMServerError
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore

SAMPLING: dict[str, Any] = {"train": {"temperature": 0.9}, "val": {"temperature": 0.0}}


def make_gate(store: InMemoryLightningStore, proxy: Any = None, **options: Any) -> AgentProxy:
    settings: dict[str, Any] = {"name": None, "path": "/models/tiny/", "drain_timeout": 5.0}
    return AgentProxy(proxy, store, **{**settings, **SAMPLING, **options})


@pytest.fixture
async def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
async def agent_proxy(store: InMemoryLightningStore) -> AsyncIterator[AgentProxy]:
    made = make_gate(store)
    await made.start()
    yield made
    await made.stop()


def address_of(models: ScriptedModels) -> str:
    return models.base_url.removeprefix("http://").removesuffix("/v1")


def calls(models: ScriptedModels) -> list[Any]:
    return [request for request in models.requests if request.path.endswith("/completions")]


async def ask(
    store: InMemoryLightningStore, agent_proxy: AgentProxy, partition: str = "train"
) -> Any:
    rollout = await store.start_rollout(input=1)
    llm: Any = agent_proxy.resource(partition)
    url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        reply = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": "hi"}]
        )
    spans = await store.query_spans(rollout.rollout_id)
    return reply, spans.items[0].attributes["agentlightning.model_version"]


class TestGate:
    def test_every_server_is_there_under_every_name(self):
        found = model_list(
            "m", {"h:1": "/a/m", "h:2": "/b/m"}, {"": {"temperature": 1.0}, "-val": {}}
        )
        assert [(e["model_name"], e["litellm_params"]["api_base"]) for e in found] == [
            ("m", "http://h:1/v1"),
            ("m", "http://h:2/v1"),
            ("m-val", "http://h:1/v1"),
            ("m-val", "http://h:2/v1"),
        ]
        assert found[0]["litellm_params"]["model"] == "hosted_vllm//a/m"
        assert found[0]["litellm_params"]["temperature"] == 1.0

    async def test_agents_get_the_sampling_of_what_they_do(
        self, store: InMemoryLightningStore, agent_proxy: AgentProxy
    ):
        with ScriptedModels([Reply("ok")], models=("/local/copy",)) as models:
            await agent_proxy.serve([address_of(models)])
            await agent_proxy.open(0)
            _, version = await ask(store, agent_proxy)
            await ask(store, agent_proxy, "val")
        assert version == "0"
        assert [r.body["temperature"] for r in calls(models)] == [0.9, 0.0]
        assert {r.body["model"] for r in calls(models)} == {"/local/copy"}
        assert agent_proxy.resource("val").model == "tiny-val"
        assert agent_proxy.resource("train").sampling_parameters == {"temperature": 0.9}

    async def test_other_models_of_the_proxy_stay_and_have_no_version(
        self, store: InMemoryLightningStore
    ):
        with (
            ScriptedModels([Reply("ok")]) as models,
            ScriptedModels([Reply("fixed")], models=("judge",)) as others,
        ):
            entries = [
                {
                    "model_name": name,
                    "litellm_params": {"model": "hosted_vllm/judge", "api_base": others.base_url},
                }
                for name in ("judge", "tiny-val")  # the second is replaced
            ]
            agent_proxy = make_gate(store, DirectProxy(store=store, model_list=entries))
            await agent_proxy.start()
            await agent_proxy.serve([address_of(models)])
            await agent_proxy.open(4)
            for name, said, version in (("tiny", "ok", "4"), ("judge", "fixed", None)):
                rollout = await store.start_rollout(input=1)
                ids = (rollout.rollout_id, rollout.attempt.attempt_id)
                llm = agent_proxy.proxy.as_resource(*ids, model=name)
                async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
                    reply = await client.chat.completions.create(
                        model=llm.model, messages=[{"role": "user", "content": "hi"}]
                    )
                assert reply.choices[0].message.content == said
                await agent_proxy.proxy.flush(*ids)
                (span,) = (await store.query_spans(rollout.rollout_id)).items
                assert span.attributes.get("agentlightning.model_version") == version
            await agent_proxy.stop()
            await agent_proxy.proxy.stop()
        assert agent_proxy.models == ["tiny", "tiny-val"]
        assert len(calls(others)) == 1

    async def test_a_call_waits_until_there_are_new_weights(
        self, store: InMemoryLightningStore, agent_proxy: AgentProxy
    ):
        with ScriptedModels([Reply("ok")]) as models:
            await agent_proxy.serve([address_of(models)])
            await agent_proxy.open(1)
            assert await agent_proxy.close() == 0
            waiting = asyncio.create_task(ask(store, agent_proxy))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            assert not calls(models)
            await agent_proxy.open(2)
            _, version = await waiting
            assert version == "2"

    async def test_a_call_in_flight_ends_on_the_old_weights(
        self, store: InMemoryLightningStore, agent_proxy: AgentProxy
    ):
        with ScriptedModels([Reply("ok", delay=0.5)]) as models:
            await agent_proxy.serve([address_of(models)])
            await agent_proxy.open(1)
            asking = asyncio.create_task(ask(store, agent_proxy))
            with anyio.fail_after(10):
                while not calls(models):
                    await anyio.sleep(0.01)
            assert await agent_proxy.close() == 0
            _, version = await asking
            assert version == "1"

    async def test_a_call_that_takes_too_long_is_aborted(self, store: InMemoryLightningStore):
        agent_proxy = make_gate(store, drain_timeout=0.2)
        await agent_proxy.start()
        try:
            with ScriptedModels([Reply("ok", delay=20)]) as models:
                await agent_proxy.serve([address_of(models)])
                await agent_proxy.open(1)
                asking = asyncio.create_task(ask(store, agent_proxy))
                with anyio.fail_after(10):
                    while not calls(models):
                        await anyio.sleep(0.01)
                assert await agent_proxy.close() == 1
                with pytest.raises(openai.APIError):
                    await asking
        finally:
            await agent_proxy.stop()

    async def test_a_proxy_of_the_runs_own_is_left_running(self, store: InMemoryLightningStore):
        proxy = DirectProxy(store=store)
        await proxy.start()
        try:
            agent_proxy = make_gate(store, proxy)
            await agent_proxy.start()
            await agent_proxy.stop()
            assert proxy.is_running()
        finally:
            await proxy.stop()

    def test_an_object_of_another_class_is_refused(self, store: InMemoryLightningStore):
        with pytest.raises(ConfigError, match="proxy: VERL pauses and redirects"):
            make_gate(store, object())


class TestHealth:
    async def test_a_server_that_is_gone_is_noticed_at_once_when_asked(self):
        with ScriptedModels([Reply("ok")]) as models:
            watch = HealthWatch(interval=3600.0)
            watch.watch([address_of(models)])
            async with anyio.create_task_group() as group:
                group.start_soon(watch.run)
                watch.suspect()
                await anyio.sleep(0.2)  # the server answers, so no error is raised
                group.cancel_scope.cancel()
            address = address_of(models)
        watch.suspect()
        with anyio.fail_after(20), pytest.raises(LLMServerError, match=f"{address} is gone"):
            await watch.run()

    async def test_it_looks_by_itself(self):
        watch = HealthWatch(interval=0.05)
        watch.watch(["127.0.0.1:1"])
        with anyio.fail_after(20), pytest.raises(LLMServerError, match=r"127\.0\.0\.1:1 is gone"):
            await watch.run()

    async def test_a_server_that_hangs_is_given_up(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("agl_algo_verl.health._ANSWER_SECONDS", 0.3)

        hung_up = asyncio.Event()

        async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            hung_up.set()

        async with await asyncio.start_server(silence, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            watch = HealthWatch(interval=3600.0)
            watch.watch([f"{host}:{port}"])
            watch.suspect()
            with anyio.fail_after(20), pytest.raises(LLMServerError, match="no answer within 0 s"):
                await watch.run()
            with anyio.fail_after(20):
                await hung_up.wait()
