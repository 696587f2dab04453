"""Parts of an answer besides its text, and the routes besides chat."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from agl_adapters import TraceToMessages
from agl_core.proxy import LLMProxy
from agl_core.types import Span
from agl_scripted import Reply, ScriptedModels, ToolCall, prompt_tokens
from agl_testing.proxy.base import (
    ANSWER,
    MESSAGES,
    ProxyTests,
    attempt_of,
    post,
    running,
    spans_of,
)
from agl_testing.proxy.stores import TroubledStore
from agl_testing.suite import requires

__all__ = ["AnswerTests", "RouteTests"]

CALLS = [
    ToolCall("search", {"query": '\u2603 "x"', "limit": 3}, "call_a"),
    ToolCall("add", {}, "b"),
]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("search", "add")
]


async def answer(base_url: str, *, stream: bool, **body: Any) -> dict[str, Any]:
    """Return a chat completion, or the one that the chunks of a stream make."""
    async with post(base_url, "/chat/completions", stream=stream, **body) as reply:
        assert reply.status == 200, await reply.text()
        if not stream:
            return await reply.json()
        lines = (await reply.text()).splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data:")]
    assert events.pop() == "[DONE]"
    return joined([json.loads(event) for event in events])


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for piece in chunk["choices"]:
            empty = {"index": piece["index"], "message": {"content": "", "tool_calls": {}}}
            choice = choices.setdefault(piece["index"], empty)
            delta = piece["delta"]
            choice["message"]["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                known = choice["message"]["tool_calls"].setdefault(call["index"], call)
                if known is not call:
                    known["function"]["arguments"] += call["function"]["arguments"]
            choice["finish_reason"] = piece.get("finish_reason") or choice.get("finish_reason")
    for choice in choices.values():
        calls = choice["message"].pop("tool_calls")
        choice["message"]["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


def called(message: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Return id, name and arguments of a message's tool calls."""
    return [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]


def finish_reasons(span: Span) -> list[Any]:
    """Return the reasons for which the choices of a span ended, in any known vocabulary."""
    listed: Any = span.attributes.get("gen_ai.response.finish_reasons")
    if isinstance(listed, str):
        listed = json.loads(listed)
    if listed:
        return list(listed)
    keys = sorted(key for key in span.attributes if key.endswith(".finish_reason"))
    return [span.attributes[key] for key in keys]


def usage_of(span: Span) -> tuple[Any, Any]:
    """Return the numbers of tokens of prompt and answer, in any known vocabulary."""
    found: list[Any] = []
    for names in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        keys = [f"gen_ai.usage.{name}" for name in names]
        found.append(next((span.attributes[key] for key in keys if key in span.attributes), None))
    return found[0], found[1]


class AnswerTests(ProxyTests):
    """Tool calls, finish reasons, usage and further choices pass and are recorded."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_tool_calls_pass_and_are_stored(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, stream: bool
    ):
        models.script = [Reply("Let me see.", tool_calls=CALLS)]
        expected = [(call.id, call.name, dict(call.arguments)) for call in CALLS]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            body = await answer(llm.endpoint, stream=stream, tools=TOOLS)
            (span,) = await spans_of(proxy_store, rollout)
        (choice,) = body["choices"]
        assert called(choice["message"]) == expected
        assert choice["finish_reason"] == "tool_calls"
        assert models.requests[0].body["tools"] == TOOLS
        assert finish_reasons(span) == ["tool_calls"]
        (conversation,) = TraceToMessages().adapt([span])
        assert conversation["messages"][-1]["content"] == "Let me see."
        assert called(conversation["messages"][-1]) == expected
        assert [tool["function"]["name"] for tool in conversation["tools"] or []] == [
            "search",
            "add",
        ]

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
    async def test_the_finish_reason_passes_and_is_stored(
        self,
        proxy: LLMProxy,
        proxy_store: TroubledStore,
        models: ScriptedModels,
        stream: bool,
        reason: str,
    ):
        models.script = [Reply("a b c", finish_reason=reason)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            body = await answer(llm.endpoint, stream=stream)
            (span,) = await spans_of(proxy_store, rollout)
        assert [choice["finish_reason"] for choice in body["choices"]] == [reason]
        assert finish_reasons(span) == [reason]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_usage_is_stored(
        self, proxy: LLMProxy, proxy_store: TroubledStore, stream: bool
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            options = {"stream_options": {"include_usage": True}} if stream else {}
            body = await answer(llm.endpoint, stream=stream, **options)
            # A stream has usage only on request; the span needs it in any case.
            await answer(llm.endpoint, stream=stream)
            spans = await spans_of(proxy_store, rollout)
        counts = len(prompt_tokens({"messages": MESSAGES})), len(ANSWER.tokens)
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == counts
        assert [usage_of(span) for span in spans] == [counts, counts]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_two_choices_pass_and_are_stored(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, stream: bool
    ):
        models.script = [Reply("the first one", others=["and another"])]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            body = await answer(llm.endpoint, stream=stream, n=2)
            (span,) = await spans_of(proxy_store, rollout)
        assert models.requests[0].body["n"] == 2
        texts = ["the first one", "and another"]
        assert [choice["message"]["content"] for choice in body["choices"]] == texts
        assert [choice["index"] for choice in body["choices"]] == [0, 1]
        assert finish_reasons(span) == ["stop", "stop"]
        found = TraceToMessages().adapt([span])
        assert [[one["content"] for one in each["messages"][1:]] for each in found] == [
            ["the first one"],
            ["and another"],
        ]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_request_reaches_the_backend_unchanged(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, stream: bool
    ):
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Add."}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_a",
                        "type": "function",
                        "function": {"name": "add", "arguments": '{"a": 1}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_a", "content": "2"},
        ]
        options = {"temperature": 0.25, "top_p": 0.5, "seed": 7, "stop": ["\n"], "max_tokens": 9}
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            await answer(llm.endpoint, stream=stream, messages=messages, **options)
            (span,) = await spans_of(proxy_store, rollout)
        seen = models.requests[0].body
        assert without_nulls(seen["messages"]) == without_nulls(messages)
        assert {key: seen[key] for key in options} == options
        assert bool(seen.get("stream")) == stream
        (conversation,) = TraceToMessages().adapt([span])
        roles = [message["role"] for message in conversation["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant"]
        assert called(conversation["messages"][2]) == [("call_a", "add", {"a": 1})]


def without_nulls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without null fields, which mean the same as absent ones."""
    return [{k: v for k, v in message.items() if v is not None} for message in messages]


class RouteTests(ProxyTests):
    """Routes besides chat."""

    @requires("routes")
    @pytest.mark.parametrize("prefix", ["", "attempt"])
    async def test_the_models_are_listed(
        self, proxy: LLMProxy, proxy_store: TroubledStore, prefix: str
    ):
        async with running(proxy), aiohttp.ClientSession() as session:
            _, llm = await attempt_of(proxy, proxy_store)
            base = llm.endpoint if prefix else proxy.base_url
            async with session.get(base + "/models") as reply:
                assert reply.status == 200
                listed = await reply.json()
        assert [model["id"] for model in listed["data"]] == ["m"]

    @requires("routes")
    @pytest.mark.parametrize("stream", [False, True])
    async def test_completions_pass_and_are_stored(
        self, proxy: LLMProxy, proxy_store: TroubledStore, stream: bool
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/completions", prompt="Say", stream=stream) as reply:
                raw = await reply.text()
            (span,) = await spans_of(proxy_store, rollout)
        assert reply.status == 200
        if stream:
            events = [line[6:] for line in raw.splitlines() if line.startswith("data: {")]
            choices = [c for event in events for c in json.loads(event)["choices"]]
        else:
            choices = json.loads(raw)["choices"]
        assert "".join(choice["text"] for choice in choices) == ANSWER.text
        assert span.status.status_code != "ERROR"
        assert usage_of(span)[1] == len(ANSWER.tokens)
        assert finish_reasons(span) == ["stop"]

    @requires("routes")
    async def test_embeddings_pass(self, proxy: LLMProxy, proxy_store: TroubledStore):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/embeddings", input=["a b", "c"]) as reply:
                body = await reply.json()
            (span,) = await spans_of(proxy_store, rollout)
        assert [item["embedding"] for item in body["data"]] == [[2.0, 1.0], [1.0, 1.0]]
        assert span.status.status_code != "ERROR"
        assert TraceToMessages().adapt([span]) == []

    @pytest.mark.parametrize(
        "body",
        [b"not json", b"[1]", b""],
    )
    async def test_a_bad_request_is_the_agents_mistake(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, body: bytes
    ):
        headers = {"content-type": "application/json"}
        async with running(proxy), aiohttp.ClientSession() as session:
            _, llm = await attempt_of(proxy, proxy_store)
            url = llm.endpoint + "/chat/completions"
            async with session.post(url, data=body, headers=headers) as reply:
                assert 400 <= reply.status < 500
                told = await reply.json()
        assert told["error"]["message"]
        assert models.requests == []

    @pytest.mark.parametrize("messages", [5, [5], "Hi", [{"role": 5}], [{"content": [[]]}]])
    async def test_odd_messages_are_the_backends_to_judge(
        self, proxy: LLMProxy, proxy_store: TroubledStore, messages: Any
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", messages=messages) as reply:
                assert reply.status < 500
                await reply.read()
            await proxy.flush()
            assert len(await spans_of(proxy_store, rollout)) <= 1
            if reply.status == 200:
                assert len(await spans_of(proxy_store, rollout)) == 1
