"""Metrics of the proxy: calls and tokens by model."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import APIStatusError, AsyncOpenAI

from agl_core.metrics import recording
from agl_core.types import AttemptedRollout
from agl_scripted import ScriptedModels
from tests.core.metrics.held import Held


async def test_calls_and_tokens_are_counted_once_per_call(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout
):
    held = Held()
    proxy = await serve(backend(models))
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    messages: Any = [{"role": "user", "content": "hi"}]
    with recording(held):
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            answer = await client.chat.completions.create(model="q", messages=messages)
            stream = await client.chat.completions.create(model="q", messages=messages, stream=True)
            assert [chunk async for chunk in stream]
            with pytest.raises(APIStatusError) as raised:
                await client.chat.completions.create(model="made-up", messages=messages)
        async with AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="none") as other:
            await other.messages.create(model="q", messages=messages, max_tokens=9)
    assert held.values["agl.proxy.total", "q", "200"] == [1, 1, 1]
    assert all(0 < seconds < 5 for seconds in held.values["agl.proxy.latency", "q", "200"])
    refused = str(raised.value.status_code)
    assert held.values["agl.proxy.total", "unknown", refused] == [1]
    assert answer.usage is not None
    assert held.values["agl.proxy.tokens", "q", "prompt"] == [answer.usage.prompt_tokens] * 3
    assert (
        held.values["agl.proxy.tokens", "q", "completion"] == [answer.usage.completion_tokens] * 3
    )
