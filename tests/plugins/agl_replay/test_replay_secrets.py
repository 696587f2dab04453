"""Recordings hold no keys, and answer only callers that may read them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from openai import OpenAI

from agl_core.agent import LitAgent
from agl_core.errors import AglError
from agl_core.types import NamedResources, Rollout
from agl_replay import read_recording, replay
from agl_replay.proxy import ReplayProxy, recorded_backends
from agl_replay.session import ReplaySession
from agl_scripted import Reply
from agl_serving import mint_token
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_memory import InMemoryLightningStore

from .replay_agents import WeatherAgent, weather_script

Record = Callable[..., Awaitable[Rollout]]
CANARY = "sk-canary-2b7e151628aed2a6"


class KeyedAgent(LitAgent[Any]):
    """Sends a key in every place that clients have for one."""

    def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        headers = {"x-api-key": CANARY, "cookie": CANARY, "proxy-authorization": CANARY}
        with OpenAI(base_url=url, api_key=CANARY, default_headers=headers) as client:
            client.chat.completions.create(
                model=llm.model,
                messages=[{"role": "user", "content": "Hi"}],
                tools=[{"type": "mcp", "headers": {"Authorization": CANARY}}],  # type: ignore[list-item]
                extra_body={
                    "api_key": CANARY,
                    "extra_headers": {"X-Api-Key": CANARY},
                    "mcp_servers": [{"url": "http://mcp", "authorization_token": CANARY}],
                },
            )
        return 1.0


@pytest.mark.parametrize("proxied", [True, False], ids=["proxy", "tracer"])
async def test_a_recording_holds_no_key(
    record: Record, store: InMemoryLightningStore, proxied: bool
):
    rollout = await record(KeyedAgent(), [Reply("Hi")], proxied=proxied)
    spans = list(await store.query_spans(rollout.rollout_id))
    assert any("gen_ai.input.messages" in span.attributes for span in spans)
    assert [span.name for span in spans if CANARY in span.model_dump_json()] == []


async def test_a_recording_answers_only_under_the_url_of_its_replay(
    record: Record, store: InMemoryLightningStore
):
    rollout = await record(WeatherAgent(), weather_script)
    recording = await read_recording(store, rollout.rollout_id)
    proxy = ReplayProxy(recorded_backends(recording), InMemoryLightningStore())
    await proxy.start()
    recorded = f"/rollout/{rollout.rollout_id}/attempt/{recording.attempt.attempt_id}"
    found: list[tuple[int, str]] = []
    try:
        proxy.sessions["ro-1", "at-1"] = ReplaySession(recording.calls)
        root = proxy.base_url.removesuffix("/v1")
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        own, other = "/rollout/ro-1/attempt/at-1", "/rollout/ro-1/attempt/at-2"
        async with aiohttp.ClientSession() as client:
            for path in ("", recorded, other, own):
                url = f"{root}{path}/v1/chat/completions"
                async with client.post(url, json=body) as reply:
                    error = (await reply.json())["error"]
                    found.append((reply.status, error["code"]))
    finally:
        await proxy.stop()
    refused = (403, "not_a_replay")
    assert found == [refused, refused, refused, (400, "replay_divergence")]


async def test_a_recording_needs_a_token_that_may_read_it(
    record: Record, store: InMemoryLightningStore
):
    rollout = await record(WeatherAgent(), weather_script)
    secret = "a-secret-of-this-test-only-0123456789"
    server = LightningStoreServer(store, host="127.0.0.1", port=0, auth_token=secret)
    await server.start()
    try:
        other = mint_token(
            secret, "attempt", lifetime=60, rollout_id="ro-other", attempt_id="at-other"
        )
        reader = mint_token(secret, "read", lifetime=60)
        with pytest.raises(AglError, match=r"at-other|token|scope"):
            await _replay(server.endpoint, other, rollout.rollout_id)
        assert await _replay(server.endpoint, reader, rollout.rollout_id)
    finally:
        await server.stop()


async def _replay(url: str, token: str, rollout_id: str) -> bool:
    client = LightningStoreClient(url, auth_token=token)
    try:
        return (await replay(WeatherAgent(), rollout_id, client)).same
    finally:
        await client.close()
