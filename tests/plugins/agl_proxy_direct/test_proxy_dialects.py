"""What agents get from servers that answer otherwise than their protocol describes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from agl_core.types import AttemptedRollout
from agl_proxy_direct.errors import error_in

from .raw_backend import RawBackend, http_response

ERROR = json.dumps({"error": {"message": "Provider returned error", "code": 429}}).encode()
PATHS = ("/chat/completions", "/messages", "/responses")


def events(*values: Any) -> bytes:
    lines = [v if isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    return b"".join(b"data: " + line + b"\n\n" for line in [*lines, b"[DONE]"])


def chunk(**delta: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta}]}


@pytest.mark.parametrize("path", PATHS)
async def test_an_error_within_status_200(ask: Any, raw: RawBackend, spans: Any, path: str):
    raw.answer = http_response(ERROR)
    status, body = await ask(path)
    if path == "/chat/completions":  # as without the proxy
        assert (status, body) == (200, ERROR)
    else:
        assert status == 429
        assert json.loads(body)["error"]["message"] == "Provider returned error"
    (span,) = await spans()
    assert span.status.status_code == "ERROR"
    assert span.status.description == "Provider returned error"


FAILED: dict[str, Any] = {
    "id": "r",
    "object": "response",
    "status": "failed",
    "error": {"code": "server_error", "message": "The model failed"},
    "output": [],
}


@pytest.mark.parametrize("path", PATHS)
async def test_a_failed_response_is_an_error(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout, spans: Any, path: str
):
    sent = json.dumps(FAILED).encode()
    raw.answer = http_response(sent)
    entry = backend(raw, "openai/Q", protocols=["responses"])
    proxy = await serve(entry, num_retries=0)
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint + path
    asked = {"role": "user", "content": "hi"}
    body = {"model": "q", "max_tokens": 9, "messages": [asked]}
    if path == "/responses":
        body = {"model": "q", "input": "hi"}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
        got = await reply.read()
    if path == "/responses":  # as without the proxy
        assert (reply.status, got) == (200, sent)
    else:
        assert reply.status == 502
        assert json.loads(got)["error"]["message"] == "The model failed"
    (span,) = await spans()
    assert span.status.status_code == "ERROR"
    assert span.status.description == "The model failed"
    assert span.attributes["error.type"] == "backend_502"


@pytest.mark.parametrize(
    ("code", "status"),
    [("server_error", 502), ("rate_limit_exceeded", 429), ("invalid_prompt", 400), (7, 502)],
)
def test_a_failed_response_has_the_status_of_its_code(code: Any, status: int):
    answer = {**FAILED, "error": {"code": code, "message": "no"}}
    assert error_in(answer, "responses") == ("no", status)


@pytest.mark.parametrize("status", ["307 Temporary Redirect", "308 Permanent Redirect"])
async def test_a_redirect_to_the_same_server_is_followed(
    ask: Any, raw: RawBackend, spans: Any, status: str
):
    message = {"role": "assistant", "content": "hello"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    whole = http_response(json.dumps({"id": "c", "choices": [choice]}).encode())

    def answer(writer: Any) -> None:
        moved = raw.requests[-1].line.split()[1].endswith("/")
        there = http_response(b"", status=status, location="/v1/chat/completions/")
        writer.write(whole if moved else there)

    raw.answer = answer
    code, body = await ask("/chat/completions")
    assert (code, json.loads(body)["choices"][0]["message"]["content"]) == (200, "hello")
    assert raw.requests[0].body == raw.requests[1].body
    assert (await spans())[0].status.status_code == "OK"


async def test_a_redirect_to_another_server_gets_no_key(ask: Any, raw: RawBackend):
    location = "http://127.0.0.2:9/v1/chat/completions"
    raw.answer = http_response(b"", status="307 Temporary Redirect", location=location)
    status, body = await ask("/chat/completions")
    assert status == 502
    assert "set api_base" in json.loads(body)["error"]["message"]


async def test_events_that_are_not_understood_pass_and_are_named(
    ask: Any, raw: RawBackend, spans: Any
):
    odd = b'{"choices": [{"index": 0, "delta": {"content": "b"}, "token_ids": 5, "logprobs": 7}]}'
    sent = [chunk(content="a"), b"{nope", odd, chunk(content="c")]
    raw.answer = http_response(events(*sent), "text/event-stream")
    status, body = await ask("/chat/completions", "openai/Q", stream=True)
    assert status == 200
    assert b"data: {nope\n\n" in body
    passed = [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]
    assert json.loads(passed[2])["choices"] == json.loads(odd)["choices"]
    (span,) = await spans()
    assert span.status.status_code == "OK"
    assert span.attributes["agl.proxy.not_understood"]
    (said,) = json.loads(span.attributes["gen_ai.output.messages"])
    assert said["parts"] == [{"type": "text", "content": "abc"}]


async def test_a_whole_body_without_a_last_event_ends_as_without_the_proxy(
    ask: Any, raw: RawBackend, spans: Any
):
    sent = b"data: " + json.dumps(chunk(content="a")).encode() + b"\n\n"
    raw.answer = http_response(sent, "text/event-stream")
    status, body = await ask("/chat/completions", "openai/Q", stream=True)
    assert status == 200
    assert b"error" not in body
    (span,) = await spans()
    assert span.attributes["error.type"] == "stream_cut"


async def test_an_answer_that_cannot_be_recorded_reaches_the_agent(
    ask: Any, raw: RawBackend, spans: Any
):
    odd = json.dumps({"id": "c", "choices": [5], "more": 1}).encode()
    raw.answer = http_response(odd)
    assert await ask("/chat/completions", "openai/Q") == (200, odd)
    assert len(await spans()) == 1


async def test_the_prompt_of_any_tool_is_recorded(ask: Any, raw: RawBackend, spans: Any):
    item = {"type": "custom_tool_call", "call_id": "c9", "name": "patch", "input": "*** Begin"}
    answer = {"id": "r", "object": "response", "status": "completed", "output": [item]}
    raw.answer = http_response(json.dumps(answer).encode())
    tools = [{"type": "custom", "name": "patch"}, {"type": "web_search"}]
    status, _ = await ask("/responses", "openai/Q", instructions="be brief", tools=tools)
    assert status == 200
    (span,) = await spans()
    asked = json.loads(span.attributes["gen_ai.input.messages"])
    assert [one["parts"][0]["content"] for one in asked] == ["be brief", "hi"]
    (said,) = json.loads(span.attributes["gen_ai.output.messages"])
    assert (said["parts"][0]["name"], said["parts"][0]["arguments"]) == ("patch", "*** Begin")
    assert said["finish_reason"] == "tool_calls"


async def test_an_error_in_a_stream_has_the_number_of_its_place(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout
):
    begun = asyncio.Event()

    async def answer(writer: Any) -> None:
        first = b"data: " + json.dumps(chunk(content="a")).encode() + b"\n\n"
        writer.write(http_response(first, "text/event-stream"))
        await writer.drain()
        await begun.wait()  # until the agent has the first events
        writer.write(b"data: {nope\n\n")

    raw.answer = answer
    proxy = await serve(backend(raw), num_retries=0)
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint + "/responses"
    body = {"model": "q", "input": "hi", "stream": True}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
        got = await reply.content.readany()
        begun.set()
        got += await reply.read()
    told = [json.loads(line[6:]) for line in got.splitlines() if line.startswith(b"data: ")]
    assert told[-1]["type"] == "error"
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
