"""Recorded rollouts replay to the same reward and spans, without their model server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agl_core.types import Rollout
from agl_replay import replay
from agl_store_memory import InMemoryLightningStore

from .replay_agents import (
    PatchAgent,
    SearchAgent,
    WeatherAgent,
    patch_script,
    search_script,
    weather_script,
)

Record = Callable[..., Awaitable[Rollout]]
PROTOCOLS = ("chat", "responses", "messages")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("recorder", ["vllm", "native", "tracer"])
async def test_replay_repeats_reward_and_spans(
    record: Record,
    store: InMemoryLightningStore,
    recorder: str,
    protocol: str,
    stream: bool,
):
    agent = WeatherAgent(protocol, stream=stream)
    options: dict[str, Any] = {"proxied": recorder != "tracer"}
    if recorder == "native":
        options["provider"] = "anthropic" if protocol == "messages" else "openai"
    rollout = await record(agent, weather_script, **options)
    assert rollout.status == "succeeded"

    result = await replay(agent, rollout.rollout_id, store)

    assert (result.error, result.divergence) == (None, None)
    assert (result.recording.reward, result.reward) == (1.0, 1.0)
    assert list(result.differing_spans) == []
    assert (result.answered, result.live, result.same) == (2, 0, True)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("recorder", ["native", "tracer"])
async def test_calls_of_codex_tools_keep_their_form(
    record: Record, store: InMemoryLightningStore, recorder: str, stream: bool
):
    agent = PatchAgent(stream=stream)
    proxied = recorder == "native"
    rollout = await record(agent, patch_script, provider="openai", proxied=proxied)
    assert rollout.status == "succeeded"

    result = await replay(agent, rollout.rollout_id, store)

    assert (result.error, result.divergence) == (None, None)
    assert (result.recording.reward, result.reward) == (1.0, 1.0)
    assert list(result.differing_spans) == []


@pytest.mark.parametrize("protocol", ["responses", "messages"])
@pytest.mark.parametrize("recorder", ["native", "tracer"])
async def test_an_answer_with_blocks_of_the_server_is_replayed_whole(
    record: Record, store: InMemoryLightningStore, recorder: str, protocol: str
):
    agent = SearchAgent(protocol)
    provider = "anthropic" if protocol == "messages" else "openai"
    proxied = recorder == "native"
    rollout = await record(agent, search_script, provider=provider, proxied=proxied)
    assert rollout.status == "succeeded"

    result = await replay(agent, rollout.rollout_id, store)

    assert (result.error, result.divergence) == (None, None)
    assert (result.recording.reward, result.reward) == (1.0, 1.0)
    assert (result.answered, result.same) == (2, True)
