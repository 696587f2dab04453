"""The spans of LiteLLM's OpenTelemetry callback, read by the core's adapters."""

from __future__ import annotations

from typing import Any

import pytest

from agl_adapters import LlmProxyTraceToTriplet, TraceToMessages
from agl_core.adapter import Reason
from agl_core.types import Span

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "book", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "t1", "type": "function", "function": {"name": "book", "arguments": "{}"}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "book A"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "ok", "tool_call_id": "t1"},
    {"role": "assistant", "content": "done"},
]


def span(sequence_id: int, name: str, start: float = 0.0, **attributes: Any) -> Span:
    return Span.from_attributes(
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
        sequence_id=sequence_id,
        name=name,
        start_time=start,
    )


@pytest.fixture(autouse=True)
def dialect(agl_registry: Any) -> None:
    agl_registry.add("dialect.litellm", "agl_proxy_litellm.hooks")


def test_a_raw_request_holds_the_conversation() -> None:
    raw = span(
        1,
        "raw_gen_ai_request",
        llm__hosted_vllm__id="chat-1",
        llm__hosted_vllm__messages=str(CONVERSATION[:-1]),
        llm__hosted_vllm__tools=str([TOOL]),
        llm__hosted_vllm__choices=str([{"index": 0, "message": CONVERSATION[-1]}]),
    )
    (conversation,) = TraceToMessages().adapt([raw])
    assert conversation["messages"] == CONVERSATION
    assert conversation["tools"] == [TOOL]


@pytest.mark.parametrize(
    "response",
    [
        {"llm__hosted_vllm__response_token_ids": "[[7, 8], [9]]"},
        {"llm__hosted_vllm__choices": "[{'index': 0, 'token_ids': [7, 8], 'logprobs': None}]"},
        {"llm__hosted_vllm__choices": '[{"token_ids": [7, 8]}]'},
    ],
)
def test_raw_requests_hold_their_ids_as_text(response: dict[str, Any]) -> None:
    raw = span(
        3,
        "raw_gen_ai_request",
        llm__hosted_vllm__id="chat-1",
        llm__hosted_vllm__prompt_token_ids="[1, 2]",
        **response,
    )
    (triplet,) = LlmProxyTraceToTriplet().adapt([raw])
    assert triplet.prompt == {"token_ids": [1, 2]}
    assert triplet.response == {"token_ids": [7, 8]}
    assert triplet.metadata == {"response_id": "chat-1"}


def test_the_twin_spans_of_one_call_count_once() -> None:
    spans = [
        span(4, "litellm_request", gen_ai__response__id="chat-1", gen_ai__prompt__0__role="user"),
        span(
            4,
            "raw_gen_ai_request",
            1.0,
            llm__hosted_vllm__id="chat-1",
            llm__hosted_vllm__prompt_token_ids=[1],
            llm__hosted_vllm__choices="[{'token_ids': [2]}]",
        ),
        span(
            5,
            "litellm_request",
            gen_ai__response__id="chat-1",
            prompt_token_ids=[1],
            response_token_ids=[2],
        ),
        span(6, "litellm_request", gen_ai__response__id="chat-2"),
        span(7, "openai.chat.completion", prompt_token_ids=[1], response_token_ids=[2]),
    ]
    adapter = LlmProxyTraceToTriplet()
    assert [t.response["token_ids"] for t in adapter.adapt(spans)] == [[2]]
    assert adapter.report.spans == 5
    assert adapter.report.left_out == {
        ("call", Reason.DUPLICATE_RESPONSE): 2,
        ("call", Reason.NO_TOKEN_IDS): 1,
    }
