"""The scripted model server, called with the official SDK."""

from __future__ import annotations

import json
import time

import aiohttp
import openai
import pytest

from agl_scripted import Reply, ScriptedModels, ToolCall, prompt_tokens, tokenize

HI = [{"role": "user", "content": "Hi"}]
TEXT = "Hello there, friend."


@pytest.fixture
def models():
    with ScriptedModels([Reply(TEXT)]) as models:
        yield models


@pytest.fixture
def client(models):
    with openai.OpenAI(base_url=models.base_url, api_key="none", max_retries=0) as client:
        yield client


def chat(client, **more):
    return client.chat.completions.create(model="m", messages=HI, **more)


def test_a_chat_completion(models, client):
    reply = chat(client, temperature=0.5)
    assert reply.choices[0].message.content == TEXT
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == len(tokenize(TEXT))
    assert not hasattr(reply, "prompt_token_ids")
    (seen,) = models.requests
    assert seen.path == "/v1/chat/completions"
    assert seen.body["temperature"] == 0.5
    assert seen.headers["authorization"] == "Bearer none"


def test_token_ids_and_logprobs_come_when_asked_for(client):
    reply = chat(client, logprobs=True, extra_body={"return_token_ids": True})
    assert reply.prompt_token_ids == [token.id for token in prompt_tokens({"messages": HI})]
    assert reply.choices[0].token_ids == [token.id for token in tokenize(TEXT)]
    content = reply.choices[0].logprobs.content
    assert [item.token for item in content] == [token.text for token in tokenize(TEXT)]
    assert [item.logprob for item in content] == [token.logprob for token in tokenize(TEXT)]


def test_a_stream_has_the_same_text_ids_and_usage(client):
    options = {"include_usage": True}
    extra = {"return_token_ids": True}
    chunks = list(chat(client, stream=True, stream_options=options, extra_body=extra))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == TEXT
    ids = [token for choice in choices for token in getattr(choice, "token_ids", None) or []]
    assert ids == [token.id for token in tokenize(TEXT)]
    assert choices[-1].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == len(tokenize(TEXT))


@pytest.mark.parametrize("stream", [False, True])
def test_the_headers_of_a_reply(models, client, stream):
    models.script = [Reply(TEXT, headers={"x-request-id": "r7"})]
    raw = client.chat.completions.with_raw_response
    answer = raw.create(model="m", messages=HI, stream=stream)
    assert answer.headers["x-request-id"] == "r7"


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls(models, client, stream):
    models.script = [Reply(tool_calls=[ToolCall("add", {"a": 1, "b": [2, "three"]}, id="call_7")])]
    if stream:
        pieces = [c.choices[0].delta.tool_calls or [] for c in chat(client, stream=True)]
        calls = [call for piece in pieces for call in piece]
        name, identity = calls[0].function.name, calls[0].id
        arguments = "".join(call.function.arguments or "" for call in calls)
        assert len(calls) > 2
    else:
        (choice,) = chat(client).choices
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        name, identity, arguments = call.function.name, call.id, call.function.arguments
    assert (name, identity) == ("add", "call_7")
    assert json.loads(arguments) == {"a": 1, "b": [2, "three"]}


@pytest.mark.parametrize("stream", [False, True])
def test_completions(client, stream):
    reply = client.completions.create(model="m", prompt="Once", stream=stream)
    text = "".join(c.choices[0].text for c in reply) if stream else reply.choices[0].text
    assert text == TEXT


@pytest.mark.parametrize("stream", [False, True])
def test_responses(client, stream):
    if stream:
        events = list(client.responses.create(model="m", input="Hi", stream=True))
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == TEXT
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == TEXT
    else:
        assert client.responses.create(model="m", input="Hi").output_text == TEXT


async def test_anthropics_messages(models):
    body = {"model": "m", "messages": HI, "max_tokens": 9}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{models.url}/v1/messages", json=body) as reply,
    ):
        message = await reply.json()
    assert message["type"] == "message"
    assert message["content"] == [{"type": "text", "text": TEXT}]
    assert message["stop_reason"] == "end_turn"


def test_models_and_embeddings(client):
    assert [model.id for model in client.models.list()] == ["scripted"]
    data = client.embeddings.create(model="m", input=["one two", "three"], encoding_format="float")
    assert [entry.embedding for entry in data.data] == [[2.0, 1.0], [1.0, 1.0]]


def test_replies_come_in_order_and_the_last_one_repeats(models, client):
    models.script = [Reply("one"), Reply("two")]
    said = [chat(client).choices[0].message.content for _ in range(3)]
    assert said == ["one", "two", "two"]


def test_a_script_may_look_at_the_request(models, client):
    models.script = lambda seen: Reply(f"{seen.number}: {seen.body['messages'][0]['content']}")
    assert chat(client).choices[0].message.content == "0: Hi"


def test_errors(models, client):
    models.script = [
        Reply(error_status=429, error_message="slow down", headers={"retry-after": "3"}),
        Reply(error_status=500),
        Reply(garbage=b"<html>"),
        Reply(drop_after=0),
    ]
    with pytest.raises(openai.RateLimitError, match="slow down") as limited:
        chat(client)
    assert limited.value.response.headers["retry-after"] == "3"
    with pytest.raises(openai.InternalServerError):
        chat(client)
    with pytest.raises(ValueError, match="Expecting value"):
        chat(client)
    with pytest.raises(openai.APIConnectionError):
        chat(client)


def test_a_truncated_stream(models, client):
    models.script = [Reply("a b c d e", drop_after=3)]
    got: list[str | None] = []
    with pytest.raises(openai.APIConnectionError):
        got.extend(chunk.choices[0].delta.content for chunk in chat(client, stream=True))
    assert got == ["", "a", " b"]


def test_delays(models, client):
    models.script = [Reply("a b c", delay=0.2, chunk_delay=0.1)]
    start = time.monotonic()
    arrivals = [time.monotonic() - start for _ in chat(client, stream=True)]
    assert arrivals[0] >= 0.2
    assert arrivals[-1] - arrivals[0] >= 0.3


def test_a_client_that_goes_away_is_counted(models, client):
    models.script = [Reply("word " * 100, chunk_delay=0.05)]
    stream = chat(client, stream=True)
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 10
    while not models.disconnects and time.monotonic() < deadline:
        time.sleep(0.01)
    assert models.disconnects == 1


def test_parameters_that_the_server_adds_to_every_request():
    with ScriptedModels([Reply("a b")], always={"return_token_ids": True}) as always:
        with openai.OpenAI(base_url=always.base_url, api_key="none", max_retries=0) as client:
            answer = chat(client)
        assert answer.choices[0].token_ids == [token.id for token in Reply("a b").tokens]
        assert "return_token_ids" not in always.requests[0].body
