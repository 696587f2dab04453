"""Calls in each protocol that agents speak, to a backend that speaks OpenAI's chat protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest

from agl_adapters import TraceToMessages
from agl_core.proxy import LLMProxy
from agl_scripted import Reply, ScriptedModels, ToolCall
from agl_testing.proxy.answers import called, finish_reasons, usage_of
from agl_testing.proxy.base import MESSAGES, ProxyTests, attempt_of, backend, running, spans_of
from agl_testing.proxy.stores import TroubledStore
from agl_testing.suite import requires

__all__ = ["ProtocolTests"]

PROTOCOLS = ("messages", "responses")
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
"""Anthropic's names of HTTP statuses: docs.anthropic.com/en/api/errors."""
SYSTEM = {"messages": "system", "responses": "instructions"}
"""The field of each protocol for what the system says."""
CALL = ToolCall("search", {"query": "snow"}, "call_a")
SCHEMA = {"type": "object", "properties": {}}
TOOLS = {
    "messages": [{"name": "search", "input_schema": SCHEMA}],
    "responses": [{"type": "function", "name": "search", "parameters": SCHEMA}],
}


class Answer(NamedTuple):
    """The content of an answer of any protocol."""

    text: str
    calls: list[tuple[str, str, Any]]
    """Id, name and arguments of each tool call."""
    reason: str
    """The reason for the end, in the protocol's own words."""
    tokens: tuple[int, int]


@asynccontextmanager
async def call(base_url: str, protocol: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    body: dict[str, Any] = {"model": "m", **more}
    if protocol == "messages":
        body = {"messages": MESSAGES, "max_tokens": 50, **body}
    else:
        body = {"input": "How are you?", **body}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{base_url}/{protocol}", json=body) as reply,
    ):
        yield reply


def events_of(raw: str) -> list[dict[str, Any]]:
    """Return the events of a stream, each of which is named as its data says."""
    events: list[dict[str, Any]] = []
    name = ""
    for line in raw.splitlines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            events.append(json.loads(line[6:]))
            assert events[-1]["type"] == name
    return events


def message_of(raw: str, *, stream: bool) -> Answer:
    """Return what an answer in Anthropic's protocol says."""
    if stream:
        events = events_of(raw)
        kinds = [event["type"] for event in events if event["type"] != "ping"]
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
        body: dict[str, Any] = events[0]["message"]
        blocks: dict[int, dict[str, Any]] = {}
        for event in events:
            if event["type"] == "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "json": ""}
            elif event["type"] == "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                block["text"] = block.get("text", "") + delta.get("text", "")
                block["json"] += delta.get("partial_json", "")
            elif event["type"] == "message_delta":
                body = {**body, **event["delta"], "usage": {**body["usage"], **event["usage"]}}
        for block in blocks.values():
            block["input"] = json.loads(block["json"] or "{}")
        body["content"] = list(blocks.values())
    else:
        body = json.loads(raw)
    assert (body["type"], body["role"]) == ("message", "assistant")
    texts = [block["text"] for block in body["content"] if block["type"] == "text"]
    calls = [
        (block["id"], block["name"], block["input"])
        for block in body["content"]
        if block["type"] == "tool_use"
    ]
    usage = body["usage"]
    tokens = usage["input_tokens"], usage["output_tokens"]
    return Answer("".join(texts), calls, body["stop_reason"], tokens)


def response_of(raw: str, *, stream: bool) -> Answer:
    """Return what an answer in OpenAI's protocol of responses says."""
    if stream:
        events = events_of(raw)
        assert events[0]["type"] == "response.created"
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(len(events)))
        body: dict[str, Any] = events[-1]["response"]
        deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        assert events[-1]["type"] == f"response.{body['status']}"
    else:
        body, deltas = json.loads(raw), None
    parts = [p for item in body["output"] if item["type"] == "message" for p in item["content"]]
    text = "".join(part["text"] for part in parts if part["type"] == "output_text")
    assert deltas is None or "".join(deltas) == text
    calls = [
        (item["call_id"], item["name"], json.loads(item["arguments"]))
        for item in body["output"]
        if item["type"] == "function_call"
    ]
    usage = body["usage"]
    reason = (body.get("incomplete_details") or {}).get("reason") or body["status"]
    return Answer(text, calls, reason, (usage["input_tokens"], usage["output_tokens"]))


READ = {"messages": message_of, "responses": response_of}


class ProtocolTests(ProxyTests):
    """An agent may speak Anthropic's protocol, or OpenAI's of responses, to any backend."""

    @requires("translation")
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    async def test_an_answer_is_translated_and_stored(
        self,
        proxy: LLMProxy,
        proxy_store: TroubledStore,
        models: ScriptedModels,
        protocol: str,
        stream: bool,
    ):
        reply = Reply("Let me see.", tool_calls=[CALL])
        models.script = [reply, Reply("a b c", finish_reason="length")]
        ended = {"messages": ["tool_use", "max_tokens"]}.get(
            protocol, ["completed", "max_output_tokens"]
        )
        answers: list[Answer] = []
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            for _ in ended:
                more = {"stream": stream, "tools": TOOLS[protocol]}
                async with call(llm.endpoint, protocol, **more) as got:
                    assert got.status == 200, await got.text()
                    answers.append(READ[protocol](await got.text(), stream=stream))
            spans = await spans_of(proxy_store, rollout)
        expected = [(CALL.id, CALL.name, dict(CALL.arguments))]
        assert [each.text for each in answers] == ["Let me see.", "a b c"]
        assert [each.calls for each in answers] == [expected, []]
        assert [each.reason for each in answers] == ended
        assert answers[0].tokens[1] == len(reply.tokens)
        assert answers[0].tokens[0] > 0
        assert models.requests[0].path.endswith("/chat/completions")
        assert [finish_reasons(span) for span in spans] == [["tool_calls"], ["length"]]
        conversation = TraceToMessages().adapt([spans[0]])[0]
        said = conversation["messages"]
        assert [(m["role"], m["content"]) for m in said] == [
            ("user", "How are you?"),
            ("assistant", "Let me see."),
        ]
        assert called(said[-1]) == expected

    @requires("translation", "token_ids")
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    async def test_a_translated_call_has_token_ids(
        self, proxy: LLMProxy, proxy_store: TroubledStore, protocol: str, stream: bool
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with call(llm.endpoint, protocol, stream=stream) as got:
                answer = READ[protocol](await got.text(), stream=stream)
            (span,) = await spans_of(proxy_store, rollout)
        ids: Any = span.attributes["response_token_ids"]
        assert len(ids) == answer.tokens[1]
        assert span.attributes["prompt_token_ids"]

    @requires("translation")
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    async def test_a_backend_of_the_same_protocol_gets_the_call_as_it_is(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
        protocol: str,
        stream: bool,
    ):
        models.script = [Reply("Let me see.", tool_calls=[CALL])]
        provider = {"messages": "anthropic"}.get(protocol, "openai")
        entry = backend(models, model=f"{provider}/m", api_key="sk-of-the-operator")
        proxy = make_proxy(model_list=[entry], store=proxy_store)
        more = {"stream": stream, "tools": TOOLS[protocol], "metadata": {"user_id": "x"}}
        more[SYSTEM[protocol]] = "Be brief."
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with call(llm.endpoint, protocol, **more) as got:
                assert got.status == 200, await got.text()
                answer = READ[protocol](await got.text(), stream=stream)
            (span,) = await spans_of(proxy_store, rollout)
        seen = models.requests[0]
        assert seen.path == f"/v1/{protocol}"
        assert seen.body["metadata"] == {"user_id": "x"}
        assert seen.body["tools"] == TOOLS[protocol]
        assert "sk-of-the-operator" in str(seen.headers)
        assert answer.text == "Let me see."
        assert answer.calls == [(CALL.id, CALL.name, dict(CALL.arguments))]
        assert finish_reasons(span) == ["tool_calls"]
        assert usage_of(span) == answer.tokens
        (conversation,) = TraceToMessages().adapt([span])
        system, user, assistant = conversation["messages"]
        assert (system["role"], system["content"]) == ("system", "Be brief.")
        assert user["content"] == "How are you?"
        assert called(assistant) == answer.calls

    @requires("translation")
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    async def test_a_request_that_only_its_backend_understands_is_stored_as_it_is(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
        protocol: str,
    ):
        provider = {"messages": "anthropic"}.get(protocol, "openai")
        entry = backend(models, model=f"{provider}/m", api_key="sk-of-the-operator")
        proxy = make_proxy(model_list=[entry], store=proxy_store)
        odd: dict[str, Any] = {"type": "hologram", "colour": "blue"}
        said = {"messages": [{"role": "user", "content": [odd]}]}
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            more = said if protocol == "messages" else {"input": [odd]}
            async with call(llm.endpoint, protocol, **more) as got:
                assert got.status == 200, await got.text()
            (span,) = await spans_of(proxy_store, rollout)
        assert "blue" in json.dumps(models.requests[0].body)
        assert "blue" in json.dumps(span.attributes)  # an error may name the type
        assert "sk-of-the-operator" not in json.dumps(span.attributes)
        assert span.status.status_code != "ERROR"

    @requires("translation")
    @pytest.mark.parametrize("status", ERRORS)
    async def test_errors_have_the_names_of_the_protocol(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, status: int
    ):
        advice = {"retry-after": "7"}
        models.script = [Reply(error_status=status, error_message="no such luck", headers=advice)]
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            async with call(llm.endpoint, "messages") as got:
                body = await got.json()
                assert got.headers["retry-after"] == "7"
                assert got.headers.getall("content-type") == ["application/json"]
            async with call(llm.endpoint, "responses") as other:
                told = await other.json()
        assert (got.status, other.status) == (status, status)
        assert body["type"] == "error"
        assert body["error"]["type"] == ERRORS[status]
        assert "no such luck" in body["error"]["message"]
        assert "no such luck" in told["error"]["message"]

    @requires("translation")
    async def test_the_proxys_own_errors_are_in_the_agents_protocol(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            async with call(llm.endpoint, "messages", model="nobody") as got:
                body = await got.json()
            async with call(llm.endpoint, "responses", model="nobody") as other:
                told = await other.json()
        assert 400 <= got.status < 500
        assert body["type"] == "error"
        assert body["error"]["type"] == ERRORS[got.status]
        assert "nobody" in body["error"]["message"]
        assert set(told["error"]) >= {"message", "type", "param", "code"}
        assert "nobody" in told["error"]["message"]

    @requires("translation")
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.parametrize("spoken", [True, False])
    async def test_a_stream_that_breaks_says_so_in_its_protocol(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
        protocol: str,
        spoken: bool,
    ):
        models.script = [Reply("a b c d e f g h i", drop_after=6)]
        provider = {"messages": "anthropic"}.get(protocol, "openai") if spoken else "hosted_vllm"
        entry = backend(models, model=f"{provider}/m", api_key="sk-of-the-operator")
        proxy = make_proxy(model_list=[entry], store=proxy_store)
        raw = b""
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with call(llm.endpoint, protocol, stream=True) as got:
                try:
                    async for chunk in got.content.iter_any():
                        raw += chunk
                except aiohttp.ClientError:
                    pass  # a connection that breaks says so as well
                else:
                    assert_reports_an_error(protocol, events_of(raw.decode()))
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        kinds = {event["type"] for event in events_of(raw.decode())}
        assert kinds.isdisjoint({"message_stop", "response.completed"})
        assert span.status.status_code == "ERROR"


def assert_reports_an_error(protocol: str, events: list[dict[str, Any]]) -> None:
    last = events[-1]
    assert last["type"] == "error"
    if protocol == "messages":
        assert set(last) == {"type", "error"}
        assert last["error"]["type"] == "api_error"
        assert last["error"]["message"]
    else:
        assert last["message"]
        assert last["code"]
