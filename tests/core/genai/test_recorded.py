"""What a span says of an answer is what a chat agent gets of it, and what chat does not have."""

from __future__ import annotations

from typing import Any

import pytest

from agl_core.genai import (
    Protocol,
    get_protocol,
    input_messages,
    output_messages,
    response_attributes,
    translate_response,
)
from agl_core.semconv import STOP_REASON, STOP_SEQUENCE

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
        (
            "messages",
            {
                "input_tokens": 2,
                "output_tokens": 2,
                "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 3,
            },
        ),
        (
            "responses",
            {
                "input_tokens": 5,
                "output_tokens": 2,
                "total_tokens": 7,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 3},
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
    assert found["gen_ai.usage.cache_creation.input_tokens"] == 3
    assert (translated["prompt_tokens"], translated["completion_tokens"]) == (5, 2)


def ends(found: Any) -> Any:
    return {key: found[key] for key in found if key.startswith("agl.response.")}


@pytest.mark.parametrize(
    ("reason", "sequence", "said"),
    [
        ("end_turn", None, {}),
        ("pause_turn", None, {STOP_REASON: "pause_turn"}),
        ("stop_sequence", "Obs:", {STOP_SEQUENCE: "Obs:"}),
        ("compaction", None, {}),
    ],
)
def test_a_span_says_of_an_end_what_its_finish_reason_does_not(
    reason: str, sequence: str | None, said: Any
):
    answer = {**message(reason), "stop_sequence": sequence}
    assert ends(response_attributes(get_protocol("messages").recorded_response(answer))) == said


@pytest.mark.parametrize("streamed", [False, True])
def test_a_span_has_the_stop_of_each_choice(streamed: bool):
    choices = [
        {"index": 0, "finish_reason": "stop", "stop_reason": "Obs:"},
        {"index": 1, "finish_reason": "stop", "stop_reason": 7, "native_finish_reason": "eos"},
        {"index": 2, "finish_reason": "stop", "stop_reason": None},
    ]
    answer: Any = {"id": "c", "model": "m", "choices": choices}
    if streamed:
        assembler = get_protocol("chat").assembler(3)
        assembler.feed(answer)
        answer = assembler.result()
    assert ends(response_attributes(answer)) == {
        STOP_SEQUENCE: "Obs:",
        STOP_SEQUENCE + ".1": 7,
        STOP_REASON + ".1": "eos",
    }


CUSTOM = {"id": "c", "type": "custom", "custom": {"name": "code", "input": "print(1)"}}
OLD = {"name": "look", "arguments": "{}"}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"tool_calls": [CUSTOM]}, "custom"),
        ({"function_call": OLD}, "function_call"),
        ({"tool_calls": [{"id": "c", "type": "function", "function": OLD}]}, None),
    ],
)
def test_the_call_of_an_answer_has_its_kind(said: Any, kind: str | None, streamed: bool):
    choice = {"index": 0, "finish_reason": "tool_calls"}
    answer: Any = {"choices": [{**choice, "message": {"role": "assistant", **said}}]}
    if streamed:
        assembler = get_protocol("chat").assembler()
        assembler.feed(answer)
        answer = assembler.result()
    ((part,),) = (one["parts"] for one in output_messages(answer["choices"]))
    assert part.get("kind") == kind
    (sent,) = input_messages({"messages": [{"role": "assistant", **said}]})
    assert sent["parts"] == [{key: part[key] for key in part if key != "kind"}]
