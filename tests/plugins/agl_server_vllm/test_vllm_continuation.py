"""Real vLLM takes a conversation as token ids, and its chat route parses the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from vllm_parts.transformers_process import Transformers

from agl_adapter_trajectory import TraceToTrajectory
from agl_proxy_direct import DirectProxy
from agl_server_vllm import VLLMServer
from agl_store_memory import InMemoryLightningStore
from agl_tiny_model import WEATHER_TOOL

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

TOLERANCE = 1e-4
"""Tolerance of log-probabilities between vLLM and Transformers, in nats, both in float32."""


async def test_a_tool_loop_whose_arguments_are_serialised_differently_is_one_row(
    policy: VLLMServer, transformers: Transformers, tiny: Path
):
    store = InMemoryLightningStore()
    proxy = DirectProxy(store=store, model_list=policy.model_list(), history="continue")
    await proxy.start()
    try:
        attempt = await store.start_rollout(input={})
        resource = proxy.as_resource(attempt.rollout_id, attempt.attempt.attempt_id)
        answers = await converse(resource.endpoint, policy.model)
    finally:
        await proxy.stop()
    spans = (await store.query_spans(attempt.rollout_id)).items
    states = [span.attributes["agl.proxy.history"] for span in spans]
    assert states == ["new", "continued", "continued"]
    assert answers[1] == "It is sunny in Paris."  # the model has learned this much by heart
    (row,) = TraceToTrajectory().adapt(spans)
    pairs = [(row.token_ids[:start], row.token_ids[start:end]) for start, end in row.responses]
    for (start, end), theirs in zip(row.responses, transformers.logprobs(tiny, pairs), strict=True):
        assert row.logprobs[start:end] == pytest.approx(theirs, abs=TOLERANCE)


async def converse(url: str, model: str) -> list[str | None]:
    """Ask for the weather, with a tool call in a stream; return the texts of the answers."""
    history: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    request: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 64}
    request["tools"] = [WEATHER_TOOL]
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = ChatCompletionStreamState()  # `stream()` takes strict tools alone
        create = client.chat.completions.create
        async for chunk in await create(**request, messages=history, stream=True):
            stream.handle_chunk(chunk)
        message = stream.get_final_completion().choices[0].message
        (asked,) = message.tool_calls or []
        texts = [message.content]
        arguments = json.dumps(json.loads(asked.function.arguments), indent=2)
        function = {"name": asked.function.name, "arguments": arguments}
        call = {"id": asked.id, "type": "function", "function": function}
        history += [
            {"role": "assistant", "content": message.content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": asked.id, "content": "sunny"},
        ]
        for _ in range(2):
            done = await create(**request, messages=history)
            texts.append(done.choices[0].message.content)
            history.append({"role": "assistant", "content": texts[-1]})
            history.append({"role": "user", "content": "How is the weather in Paris?"})
    return texts
