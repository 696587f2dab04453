"""Agents with the official SDKs, against backends that speak the same protocol or another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from agl_core.types import AttemptedRollout
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels, ToolCall, tokenize

PROVIDERS = ["hosted_vllm/Q", "openai/Q", "anthropic/Q"]
TEXT = "Hello there my friend"
CALL = ToolCall("book", {"room": 4, "guests": ["Ann", "Bo"]})
PARAMETERS: Any = {"type": "object", "properties": {"room": {"type": "integer"}}}


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def proxy(serve: Any, models: ScriptedModels, backend: Any, provider: str) -> DirectProxy:
    return await serve(backend(models, provider))


@pytest.fixture
def url(proxy: DirectProxy, claim: AttemptedRollout) -> str:
    return proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint


def check_span(span: Any, provider: str, protocol: str) -> None:
    attributes = span.attributes
    assert span.status.status_code == "OK"
    assert attributes["agl.proxy.protocol"] == protocol
    assert attributes["gen_ai.operation.name"] == "chat"
    parts = json.loads(attributes["gen_ai.input.messages"])[-1]["parts"]
    assert parts == [{"type": "text", "content": "book it"}]
    said = json.loads(attributes["gen_ai.output.messages"])[0]["parts"]
    assert said[0] == {"type": "text", "content": TEXT}
    assert said[1]["name"] == "book"
    assert json.loads(said[1]["arguments"]) == CALL.arguments
    assert attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert attributes["gen_ai.usage.output_tokens"] > 4
    assert json.loads(attributes["gen_ai.tool.definitions"])[0]["function"]["name"] == "book"
    if provider.startswith("hosted_vllm"):
        ids = [token.id for token in Reply(TEXT, [CALL]).tokens]
        assert attributes["response_token_ids"] == ids
        assert len(json.loads(attributes["logprobs.content"])) == len(ids)


async def test_chat(url: str, models: ScriptedModels, spans: Any, provider: str):
    models.script = [Reply(TEXT, [CALL])]
    function: Any = {"name": "book", "parameters": PARAMETERS}
    request: Any = {
        "model": "q",
        "messages": [{"role": "user", "content": "book it"}],
        "tools": [{"type": "function", "function": function}],
    }
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(**request)
        async with client.chat.completions.stream(**request) as stream:
            async for _ in stream:
                continue
            streamed = await stream.get_final_completion()
    for made in (whole, streamed):
        choice: Any = made.choices[0]
        assert choice.message.content == TEXT
        assert choice.finish_reason == "tool_calls"
        assert json.loads(choice.message.tool_calls[0].function.arguments) == CALL.arguments
    for span in await spans():
        check_span(span, provider, "chat")


async def test_responses(url: str, models: ScriptedModels, spans: Any, provider: str):
    models.script = [Reply(TEXT, [CALL])]
    tool: Any = {"type": "function", "name": "book", "parameters": PARAMETERS, "strict": False}
    request: Any = {"model": "q", "input": "book it", "instructions": "be brief", "tools": [tool]}
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        whole = await client.responses.create(**request)
        async with client.responses.stream(**request) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_response()
    for made in (whole, streamed):
        assert made.status == "completed"
        assert made.output_text == TEXT
        calls = [item for item in made.output if item.type == "function_call"]
        assert [json.loads(c.arguments) for c in calls] == [CALL.arguments]
        assert made.usage is not None and made.usage.output_tokens > 4
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds
    for span in await spans():
        check_span(span, provider, "responses")
        first = json.loads(span.attributes["gen_ai.input.messages"])[0]
        assert first == {"role": "system", "parts": [{"type": "text", "content": "be brief"}]}


async def test_messages(url: str, models: ScriptedModels, spans: Any, provider: str):
    models.script = [Reply(TEXT, [CALL])]
    tool: Any = {"name": "book", "input_schema": PARAMETERS}
    request: Any = {
        "model": "q",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "book it"}],
        "tools": [tool],
    }
    base = url.removesuffix("/v1")
    async with AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
        whole = await client.messages.create(**request)
        async with client.messages.stream(**request) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            streamed = await stream.get_final_message()
    assert text == TEXT
    for made in (whole, streamed):
        assert [block.type for block in made.content] == ["text", "tool_use"]
        assert made.content[0].text == TEXT  # pyright: ignore[reportAttributeAccessIssue]
        assert made.content[1].input == CALL.arguments  # pyright: ignore[reportAttributeAccessIssue]
        assert made.stop_reason == "tool_use"
        assert made.usage.output_tokens > 4
    for span in await spans():
        check_span(span, provider, "messages")


@pytest.mark.parametrize("provider", ["hosted_vllm/Q"], indirect=True)
def test_the_sync_clients(url: str, models: ScriptedModels):
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        made = client.chat.completions.create(model="q", messages=messages)
        assert made.choices[0].message.content == TEXT
        stream = client.chat.completions.create(model="q", messages=messages, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in stream) == TEXT
    base = url.removesuffix("/v1")
    with (
        Anthropic(base_url=base, api_key="none", max_retries=0) as client,
        client.messages.stream(model="q", max_tokens=9, messages=messages) as events,
    ):
        assert "".join(events.text_stream) == TEXT


@pytest.mark.parametrize("provider", ["anthropic/Q"], indirect=True)
async def test_images_and_results_of_tools_reach_another_protocol(url: str, models: ScriptedModels):
    messages: Any = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is it"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        },
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    ]
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        await client.chat.completions.create(model="q", messages=messages)
    asked = models.requests[-1]
    assert asked.path == "/v1/messages"
    assert asked.headers["anthropic-version"] == "2023-06-01"
    image = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "a cat"}
    assert asked.body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is it"},
                {"type": "image", "source": image},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}],
        },
        {"role": "user", "content": [result]},
    ]
    assert asked.body["max_tokens"] == 4096


async def test_the_span_names_fields_that_a_translation_leaves_out(
    url: str, models: ScriptedModels, spans: Any, provider: str
):
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True}
    use = {"type": "tool_use", "id": "c1", "name": "book", "input": {}}
    messages: Any = [
        {"role": "user", "content": "book it"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    base = url.removesuffix("/v1")
    async with AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
        await client.messages.create(model="q", max_tokens=9, messages=messages)
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        chat: Any = {"messages": messages[:1], "model": "q", "seed": 7}
        await client.chat.completions.create(**chat)
    lost = [span.attributes.get("agl.proxy.lost") for span in await spans()]
    if provider.startswith("anthropic"):
        assert lost == [None, ["seed"]]
    else:
        assert lost == [["tool_result.is_error"], None]


async def test_a_protocol_that_no_backend_speaks_is_refused(
    url: str, models: ScriptedModels, spans: Any, provider: str
):
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        if provider.startswith("anthropic"):
            with pytest.raises(Exception, match="do not accept embeddings calls"):
                await client.embeddings.create(model="q", input="x")
            assert models.requests == []
            assert (await spans())[0].attributes["error.type"] == "protocol_not_supported"
        else:
            made = await client.embeddings.create(model="q", input="a b")
            assert made.data[0].embedding[0] == len(tokenize("a b"))
