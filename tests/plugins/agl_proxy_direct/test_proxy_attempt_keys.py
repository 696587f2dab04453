"""A runner's agent gets the key of its own attempt, and a proxy with auth accepts it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI, AuthenticationError, OpenAI, PermissionDeniedError

import agl_core as agl
from agl_core import semconv
from agl_proxy_direct import DirectProxy
from agl_runner import LitAgentRunner
from agl_scripted import ScriptedModels
from agl_serving import TokenVerifier, is_token, mint_token
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_kit import LightningStoreThreaded
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

SECRET = "a-secret-of-good-length"
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@agl.rollout
async def asks(task: Any, llm: agl.LLM) -> float:
    """Calls the model with the attempt's own key and URL; the reward is 1 for the right answer."""
    assert llm.api_key is not None and is_token(llm.api_key)
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        made = await client.chat.completions.create(model=llm.model, messages=MESSAGES)
    return float(made.choices[0].message.content == "Hello there my friend")


class Class(agl.LitAgent[Any]):
    """The same agent as a class, which gets the resource unchanged."""

    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        llm = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        with OpenAI(base_url=url, api_key=llm.api_key, max_retries=0) as client:
            made = client.chat.completions.create(model=llm.model, messages=MESSAGES)
        return float(made.choices[0].message.content == "Hello there my friend")


@agl.rollout
async def trespasses(task: dict[str, str], llm: agl.LLM, rollout: agl.AttemptedRollout) -> float:
    """Calls another attempt's URL, and its own URL without a key."""
    own = f"rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}"
    other = llm.endpoint.replace(own, task["other"])
    assert other != llm.endpoint
    for url, key, error in (
        (other, llm.api_key, PermissionDeniedError),
        (llm.endpoint, "none", AuthenticationError),
    ):
        async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
            with pytest.raises(error):
                await client.chat.completions.create(model=llm.model, messages=MESSAGES)
    return 1.0


@pytest.fixture
async def server(store: InMemoryLightningStore) -> AsyncIterator[LightningStoreServer]:
    """A store server that requires tokens."""
    server = LightningStoreServer(store, port=0, auth_token=SECRET)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def runner_client(server: LightningStoreServer) -> AsyncIterator[LightningStoreClient]:
    token = mint_token(SECRET, "runner", lifetime=60)
    client = LightningStoreClient(server.endpoint, auth_token=token)
    yield client
    await client.close()


@pytest.fixture
async def proxy(
    server: LightningStoreServer, models: ScriptedModels, serve: Any, backend: Any
) -> AsyncIterator[DirectProxy]:
    client = LightningStoreClient(server.endpoint, auth_token=SECRET)
    proxy = await serve(backend(models), store=client, auth_token=SECRET)
    yield proxy
    await proxy.stop()
    await client.close()


@pytest.mark.parametrize("agent", [asks, Class()], ids=["function", "class"])
async def test_a_runner_gives_an_agent_its_key(
    proxy: DirectProxy,
    runner_client: LightningStoreClient,
    store: InMemoryLightningStore,
    models: ScriptedModels,
    agent: Any,
):
    await store.add_resources({"llm": proxy.as_resource()})
    tasks = [await store.enqueue_rollout(number) for number in range(3)]
    runner = LitAgentRunner(OtelTracer(), max_rollouts=3)
    with runner.run_context(agent=agent, store=runner_client):
        await runner.iter()
    done = await store.wait_for_rollouts(rollout_ids=[t.rollout_id for t in tasks], timeout=10)
    assert [rollout.status for rollout in done] == ["succeeded"] * 3
    for rollout in done:
        spans = (await store.query_spans(rollout.rollout_id)).items
        (call,) = [span for span in spans if span.name == semconv.SPAN_MODEL_CALL]
        assert len(call.attributes["response_token_ids"]) == 4  # pyright: ignore[reportArgumentType]
    # The stored resource is the algorithm's, and no model server got a token.
    update = await store.get_latest_resources()
    assert update is not None and update.resources["llm"].api_key is None  # pyright: ignore[reportAttributeAccessIssue]
    assert all("authorization" not in seen.headers for seen in models.requests)


async def test_a_key_is_valid_for_its_own_attempt_only(
    proxy: DirectProxy,
    runner_client: LightningStoreClient,
    store: InMemoryLightningStore,
    models: ScriptedModels,
):
    other = await store.start_rollout("other")
    path = f"rollout/{other.rollout_id}/attempt/{other.attempt.attempt_id}"
    runner = LitAgentRunner(OtelTracer(), max_rollouts=1)
    token = mint_token(SECRET, "algorithm", lifetime=60)
    algorithm = LightningStoreClient(runner_client.server_address_root, auth_token=token)
    await algorithm.add_resources({"llm": proxy.as_resource()})
    tried = await algorithm.enqueue_rollout({"other": path})
    await algorithm.close()
    with runner.run_context(agent=trespasses, store=runner_client):
        await runner.iter()
    ended = await store.get_rollout_by_id(tried.rollout_id)
    assert ended is not None and ended.status == "succeeded"
    assert models.requests == []
    assert list((await store.query_spans(other.rollout_id)).items) == []


class Once(agl.Algorithm):
    """Runs each task once and keeps the final statuses."""

    statuses: list[str]

    @agl.with_llm_proxy(required=True)
    async def run(self, llm_proxy: Any, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        await store.add_resources({"llm": llm_proxy.as_resource()})
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in train_dataset]
        done = await store.wait_for_rollouts(rollout_ids=ids, timeout=60)
        self.statuses = [rollout.status for rollout in done]


@pytest.mark.parametrize("strategy", ["shm", {"type": "cs", "server_port": 0}], ids=["shm", "cs"])
def test_a_trainers_own_proxy_gives_keys_with_any_store(models: ScriptedModels, strategy: Any):
    algorithm = Once()
    params = {"model": "hosted_vllm/Q", "api_base": models.base_url}
    trainer = agl.Trainer(
        algorithm=algorithm,
        strategy=strategy,
        n_runners=2,
        llm_proxy={
            "auth_token": SECRET,
            "model_list": [{"model_name": "q", "litellm_params": params}],
        },
    )
    trainer.fit(asks, [1, 2, 3])
    assert algorithm.statuses == ["succeeded"] * 3


async def test_where_tokens_of_attempts_come_from(
    server: LightningStoreServer, store: InMemoryLightningStore
):
    claim = await store.start_rollout("x")
    ids = (claim.rollout_id, claim.attempt.attempt_id)
    assert store.attempt_token(*ids) is None
    token = LightningStoreThreaded(server).attempt_token(*ids)
    assert token is not None and is_token(token)
    identity = TokenVerifier(SECRET).identify(token.encode())
    assert identity is not None
    assert (identity.scope, identity.rollout_id, identity.attempt_id) == ("attempt", *ids)
    for other in ("", "eyJ", "eyJhbGciOiJub25lIn0.e30.", SECRET):
        assert not is_token(other)


async def test_a_proxy_without_auth_shows_no_token_to_its_backend(
    serve: Any, backend: Any, models: ScriptedModels
):
    proxy = await serve(backend(models))
    token = mint_token(SECRET, "attempt", lifetime=60, rollout_id="r", attempt_id="a")
    for key, shown in ((token, None), ("eyJust-a-key", "Bearer eyJust-a-key")):
        async with AsyncOpenAI(base_url=proxy.base_url, api_key=key) as client:
            await client.chat.completions.create(model="q", messages=MESSAGES)
        assert models.requests[-1].headers.get("authorization") == shown
