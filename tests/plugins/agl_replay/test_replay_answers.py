"""Recorded answers come back as they were recorded, whole and as streams."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_core import genai
from agl_core.genai import Protocol, SseSplitter, get_protocol, loads, translate_response
from agl_replay.answers import answer_body, answer_chunks

ASKED = {"logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
TEXTS = st.text(max_size=80)
PARTS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "content": text}, TEXTS),
        st.builds(
            lambda number, text: {
                "type": "tool_call",
                "id": f"call_{number}",
                "name": "look_up",
                "arguments": f'{{"x":{number},"y":"{"ab" * (len(text) % 40)}"}}',
            },
            st.integers(0, 9),
            TEXTS,
        ),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda part: part["type"] + part.get("id", ""),
)


def recorded(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the attributes of a recorded call that answered with these parts."""
    ordered = sorted(parts, key=lambda part: part["type"] != "text")
    called = any(part["type"] == "tool_call" for part in ordered)
    if called:  # as chat is recorded: no empty text beside tool calls
        ordered = [part for part in ordered if part.get("content") != ""]
    reason = "tool_calls" if called else "stop"
    message = {"role": "assistant", "parts": ordered, "finish_reason": reason}
    return {
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "m",
        "gen_ai.output.messages": genai.dumps([message]).decode(),
        "gen_ai.response.finish_reasons": [reason],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": [4, 5],
        "logprobs.content": '[{"token":"a","logprob":-0.5},{"token":"b","logprob":-1.25}]',
    }


def attributes_of(response: dict[str, Any]) -> dict[str, Any]:
    found = genai.response_attributes(response)
    for key in ("gen_ai.output.messages", "logprobs.content"):
        if key in found:
            found[key] = loads(found[key].encode())
    return found


def parsed(attributes: dict[str, Any]) -> dict[str, Any]:
    texts = ("gen_ai.output.messages", "logprobs.content")
    return {**attributes, **{key: loads(attributes[key].encode()) for key in texts}}


def assembled(protocol: Protocol, chunks: list[bytes]) -> dict[str, Any]:
    assembler = get_protocol(protocol).assembler()
    for event in SseSplitter().feed(b"".join(chunks)):
        if event.data != b"[DONE]":
            assembler.feed(loads(event.data))
    assert assembler.finished
    return assembler.result()


@given(PARTS)
def test_chat_answers_are_as_recorded(parts: list[dict[str, Any]]):
    attributes = recorded(parts)
    whole = loads(answer_body(attributes, "chat", dict(ASKED)))
    streamed = assembled("chat", answer_chunks(attributes, "chat", dict(ASKED)))
    assert attributes_of(whole) == parsed(attributes)
    assert attributes_of(streamed) == parsed(attributes)


@given(PARTS)
@pytest.mark.parametrize("protocol", ["messages", "responses"])
def test_streams_of_other_protocols_hold_the_whole_answer(
    protocol: Protocol, parts: list[dict[str, Any]]
):
    attributes = recorded(parts)
    whole = loads(answer_body(attributes, protocol, {}))
    streamed = assembled(protocol, answer_chunks(attributes, protocol, {}))
    first, second = (
        parsed_chat(translate_response(protocol, "chat", one)) for one in (whole, streamed)
    )
    assert first == second
    (kept,) = loads(attributes["gen_ai.output.messages"].encode())
    assert [one for one in first if one.get("content") != ""] == [
        one for one in kept["parts"] if one.get("content") != ""
    ]


def parsed_chat(response: dict[str, Any]) -> list[dict[str, Any]]:
    (message,) = genai.output_messages(response["choices"])
    return message["parts"]


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_all_parts_of_the_reasoning_are_replayed(protocol: Protocol):
    """A content that is a list has its thoughts in several places."""
    attributes = recorded(
        [
            {"type": "reasoning", "content": "First this. "},
            {"type": "text", "content": "42"},
            {"type": "reasoning", "content": "Then that."},
        ]
    )
    whole = loads(answer_body(attributes, protocol, {}))
    streamed = assembled(protocol, answer_chunks(attributes, protocol, {}))
    for one in (whole, streamed):
        assert parsed_chat(translate_response(protocol, "chat", one)) == [
            {"type": "reasoning", "content": "First this. Then that."},
            {"type": "text", "content": "42"},
        ]


def test_completions_are_as_recorded():
    attributes = recorded([{"type": "text", "content": "a b c " * 20}])
    request = {**ASKED, "logprobs": 1}
    whole = loads(answer_body(attributes, "completions", dict(request)))
    streamed = assembled("completions", answer_chunks(attributes, "completions", dict(request)))
    for found in (attributes_of(whole), attributes_of(streamed)):
        assert found == parsed(attributes)


def test_a_stream_has_several_chunks():
    attributes = recorded([{"type": "text", "content": "word " * 200}])
    chunks = answer_chunks(attributes, "chat", {})
    assert 10 < len(chunks) < 24


def test_fields_that_were_not_asked_for_are_left_out():
    attributes = recorded([{"type": "text", "content": "hi"}])
    body = answer_body(attributes, "chat", {})
    chunks = b"".join(answer_chunks(attributes, "chat", {}))
    assert b"token_ids" not in body + chunks
    assert loads(body)["choices"][0]["logprobs"] is None
    assert b"usage" not in chunks


def test_a_broken_stream_has_no_end():
    attributes = recorded([{"type": "text", "content": "hi"}])
    chunks = answer_chunks(attributes, "chat", {}, whole=False)
    assert b"[DONE]" not in b"".join(chunks)
    assert b'"finish_reason":"stop"' not in b"".join(chunks)
    assert b"hi" in b"".join(chunks)
