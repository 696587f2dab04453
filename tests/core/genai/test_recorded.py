"""What a span says of an answer is what a chat agent gets of it, and what chat does not have."""

from __future__ import annotations

from typing import Any

import pytest

from agl_core.genai import Protocol, get_protocol, response_attributes, translate_response

CALL = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
ITEM = {"type": "function_call", "call_id": "t", "name": "look", "arguments": "{}"}


def message(reason: str | None, *content: Any) -> Any:
    return {"id": "m", "content": [*content], "stop_reason": reason}


def response(status: str, reason: str | None, *output: Any) -> Any:
    details = {"reason": reason} if reason else None
    return {"id": "r", "status": status, "incomplete_details": details, "output": [*output]}


@pytest.mark.parametrize(
    ("protocol", "answer", "finish"),
    [
        ("messages", message("end_turn"), "stop"),
        ("messages", message("tool_use", CALL), "tool_calls"),
        ("messages", message("end_turn", CALL), "tool_calls"),
        ("messages", message("max_tokens", CALL), "length"),
        ("messages", message("", CALL), None),
        ("responses", response("completed", None), "stop"),
        ("responses", response("completed", None, ITEM), "tool_calls"),
        ("responses", response("incomplete", "max_output_tokens", ITEM), "length"),
        ("responses", response("incomplete", "content_filter"), "content_filter"),
        ("responses", response("incomplete", None, ITEM), "length"),
        ("responses", response("failed", None), None),
    ],
)
def test_a_record_and_a_translation_end_alike(protocol: Protocol, answer: Any, finish: str | None):
    recorded = get_protocol(protocol).recorded_response(answer)
    translated = translate_response(protocol, "chat", answer)
    assert recorded["choices"][0]["finish_reason"] == finish
    assert translated["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize(
    ("protocol", "answer", "agents"),
    [
        ("messages", message("compaction"), "stop"),
        ("responses", response("incomplete", "max_tool_calls"), "length"),
    ],
)
def test_a_record_keeps_an_end_that_chat_does_not_have(
    protocol: Protocol, answer: Any, agents: str
):
    recorded = get_protocol(protocol).recorded_response(answer)["choices"][0]["finish_reason"]
    assert recorded in str(answer)
    translated = translate_response(protocol, "chat", answer)
    assert translated["choices"][0]["finish_reason"] == agents


@pytest.mark.parametrize(
    ("protocol", "usage"),
    [
        ("messages", {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 0}),
        (
            "responses",
            {
                "input_tokens": 5,
                "output_tokens": 2,
                "total_tokens": 7,
                "input_tokens_details": {"cached_tokens": 0},
            },
        ),
    ],
)
def test_a_record_counts_what_a_translation_counts(protocol: Protocol, usage: Any):
    whole = message("end_turn") if protocol == "messages" else response("completed", None)
    found = response_attributes(get_protocol(protocol).recorded_response({**whole, "usage": usage}))
    translated = translate_response(protocol, "chat", {**whole, "usage": usage})["usage"]
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (5, 2)
    assert found["gen_ai.usage.cache_read.input_tokens"] == 0
    assert (translated["prompt_tokens"], translated["completion_tokens"]) == (5, 2)
