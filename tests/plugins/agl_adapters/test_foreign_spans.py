"""Spans of Vercel's AI SDK, Google ADK and Langfuse, as they come over OTLP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_adapters import TracerTraceToTriplet, TraceToMessages, with_conventions
from agl_core.types import Span

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def span(**attributes: Any) -> Span:
    return Span.from_attributes(
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
        sequence_id=1,
        span_id="a" * 16,
        start_time=1.0,
        end_time=2.0,
    )


def vercel(**more: Any) -> Span:
    call = {"toolCallId": "c1", "toolName": "weather"}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Oslo?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "look"},
                {"type": "tool-call", **call, "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "tool",
            "content": [
                {"type": "tool-result", **call, "output": {"type": "text", "value": "rain"}}
            ],
        },
    ]
    tool = {"type": "function", "name": "weather", "inputSchema": SCHEMA}
    given = {
        "operation__name": "ai.generateText.doGenerate",
        "ai__operationId": "ai.generateText.doGenerate",
        "ai__model__id": "gpt",
        "ai__prompt__messages": json.dumps(messages),
        "ai__prompt__tools": [json.dumps(tool)],
        "ai__response__text": "It rains.",
        "ai__response__finishReason": "tool-calls",
        "ai__response__id": "r-1",
        "ai__response__model": "gpt-1",
        "ai__usage__promptTokens": 12,
        "ai__usage__completionTokens": 3,
        "gen_ai__request__model": "gpt",
    }
    return span(**{key: value for key, value in (given | more).items() if value is not None})


def adk(**more: Any) -> Span:
    asked = {"function_call": {"id": "c1", "name": "weather", "args": {"city": "Oslo"}}}
    told = {"function_response": {"id": "c1", "name": "weather", "response": "rain"}}
    request = {
        "model": "gemini",
        "config": {
            "system_instruction": "Be brief.",
            "tools": [{"function_declarations": [{"name": "weather", "parameters": SCHEMA}]}],
        },
        "contents": [
            {"role": "user", "parts": [{"text": "Oslo?"}]},
            {"role": "model", "parts": [{"text": "look", "thought": True}, asked]},
            {"role": "user", "parts": [told]},
        ],
    }
    response = {
        "content": {"role": "model", "parts": [{"text": "It rains."}]},
        "finish_reason": "STOP",
        "usage_metadata": {"prompt_token_count": 12, "candidates_token_count": 3},
    }
    given = {
        "gen_ai__system": "gcp.vertex.agent",
        "gcp__vertex__agent__llm_request": json.dumps(request),
        "gcp__vertex__agent__llm_response": json.dumps(response),
    }
    return span(**(given | more))


def langfuse(**more: Any) -> Span:
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Oslo?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    ]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    given = {
        "langfuse__observation__type": "generation",
        "langfuse__observation__model__name": "gpt",
        "langfuse__observation__model__parameters": '{"temperature": 0.5, "stop": ["x"]}',
        "langfuse__observation__input": json.dumps({"messages": messages, "tools": tools}),
        "langfuse__observation__output": json.dumps({"role": "assistant", "content": "It rains."}),
        "langfuse__observation__usage_details": '{"input": 12, "output": 3}',
    }
    return span(**(given | more))


@pytest.mark.parametrize("call", [vercel, adk, langfuse])
def test_a_call_is_a_conversation(call: Any) -> None:
    adapter = TraceToMessages()
    (found,) = adapter.adapt([call()])
    (asked,) = found["messages"][2]["tool_calls"]
    assert json.loads(asked["function"].pop("arguments")) == {"city": "Oslo"}
    assert found["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Oslo?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather"}}],
        },
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It rains."},
    ]
    assert found["tools"] == [
        {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    ]
    assert adapter.report.left_out == {}
    read = with_conventions(call()).attributes
    assert (read["gen_ai.usage.input_tokens"], read["gen_ai.usage.output_tokens"]) == (12, 3)
    (triplet,) = TracerTraceToTriplet().adapt([call()])
    assert triplet.metadata["request"]["model"] in ("gpt", "gemini")


def test_answers_in_their_other_forms() -> None:
    calls = [{"toolCallType": "function", "toolCallId": "c2", "toolName": "f", "args": "{}"}]
    called = vercel(ai__response__text=None, ai__response__toolCalls=json.dumps(calls))
    (found,) = TraceToMessages().adapt([called])
    (asked,) = found["messages"][-1]["tool_calls"]
    assert asked == {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    raw = {
        "candidates": [{"content": {"parts": [{"function_call": {"name": "f"}}], "role": "model"}}]
    }
    (found,) = TraceToMessages().adapt([adk(gcp__vertex__agent__llm_response=json.dumps(raw))])
    (asked,) = found["messages"][-1]["tool_calls"]
    assert asked["function"] == {"name": "f", "arguments": "{}"}

    for output, text in (("plain", "plain"), ('{"mood": "glad"}', '{"mood": "glad"}')):
        plain = langfuse(langfuse__observation__input="hi", langfuse__observation__output=output)
        (found,) = TraceToMessages().adapt([plain])
        assert [message["content"] for message in found["messages"]] == ["hi", text]


@pytest.mark.parametrize(
    "call",
    [
        vercel(ai__response__text=None),
        adk(gcp__vertex__agent__llm_response="{}"),
        langfuse(langfuse__observation__output=""),
        langfuse(langfuse__observation__input='[1, "odd"]'),
    ],
)
def test_what_cannot_be_read_is_counted(call: Span) -> None:
    adapter = TracerTraceToTriplet()
    adapter.adapt([call])
    ((item, why),) = (key for key in adapter.report.left_out if key[0] == "span")
    assert item == "span"
    assert why.startswith("written in the dialect of ")
    assert why.endswith(", without an answer in it")


def test_spans_around_a_call_are_no_calls() -> None:
    whole = span(ai__operationId="ai.generateText", ai__prompt="{}", ai__response__text="x")
    agent = span(langfuse__observation__type="agent", langfuse__observation__input="x")
    for other in (whole, agent, span(http__method="GET")):
        assert with_conventions(other) is other
    told = vercel(gen_ai__input__messages="[]", gen_ai__output__messages="[]")
    assert with_conventions(told) is told


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "parts", "text", "type", "messages", "config"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(JSON, JSON)
def test_odd_content_never_fails(sent: Any, answer: Any) -> None:
    for call in (
        vercel(ai__prompt__messages=json.dumps(sent), ai__response__toolCalls=json.dumps(answer)),
        adk(
            gcp__vertex__agent__llm_request=json.dumps(sent),
            gcp__vertex__agent__llm_response=json.dumps(answer),
        ),
        langfuse(
            langfuse__observation__input=json.dumps(sent),
            langfuse__observation__output=json.dumps(answer),
        ),
    ):
        with_conventions(call)
