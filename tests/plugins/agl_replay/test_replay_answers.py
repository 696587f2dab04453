"""Recorded answers come back as they were recorded, whole and as streams."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_core import genai
from agl_core.genai import (
    Protocol,
    ServerSentEvent,
    SseSplitter,
    get_protocol,
    loads,
    translate_response,
)
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
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_creation.input_tokens": 5,
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


def events_of(chunks: list[bytes]) -> list[ServerSentEvent]:
    events = SseSplitter().feed(b"".join(chunks))
    return [event for event in events if event.data != b"[DONE]"]


def assembled(protocol: Protocol, chunks: list[bytes], choices: int = 1) -> dict[str, Any]:
    assembler = get_protocol(protocol).assembler(choices)
    for event in events_of(chunks):
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


SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "s1",
    "content": [{"type": "web_search_result", "url": "http://u", "page_age": None}],
}
CALL = {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"x": 1}}
BLOCKS = [
    {"type": "text", "text": "I look it up. "},
    SEARCH,
    FOUND,
    {"type": "redacted_thinking", "data": "ENC"},
    {"type": "text", "text": ""},
    {"type": "text", "text": "It is 4. " * 9},
    CALL,
]


def said(text: str, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "content": [{**part, **more}]}


SHELL = {"type": "local_shell_call", "id": "l1", "call_id": "c1", "action": {"command": ["ls"]}}
ITEMS = [
    said("I look it up. "),
    {"type": "web_search_call", "id": "ws1", "status": "completed", "action": {"query": "q"}},
    said(""),
    said("It is 4. " * 9),
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    SHELL,
    {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
]
SHELL_TOOLS = [{"type": "local_shell"}, {"type": "custom", "name": "patch"}]


def attributes_from(protocol: Protocol, blocks: list[Any], **more: Any) -> dict[str, Any]:
    """Return the attributes of a recorded call whose server answered with these blocks."""
    answer = {"id": "r1", "model": "m", "content": blocks, "output": blocks, **more}
    return genai.response_attributes(get_protocol(protocol).recorded_response(answer))


def blocks_of(answer: dict[str, Any], *left_out: str) -> list[Any]:
    blocks: Any = answer.get("content", answer.get("output"))
    return [{key: one[key] for key in one if key not in left_out} for one in blocks]


@pytest.mark.parametrize("blocks", [BLOCKS, BLOCKS[-1:], BLOCKS[1:3], []])
def test_blocks_of_messages_keep_their_form_and_their_place(blocks: list[Any]):
    attributes = attributes_from("messages", blocks, stop_reason="end_turn")
    whole = loads(answer_body(attributes, "messages", {}))
    streamed = assembled("messages", answer_chunks(attributes, "messages", {}))
    assert blocks_of(whole) == blocks_of(streamed) == blocks


@pytest.mark.parametrize("items", [ITEMS, ITEMS[5:], ITEMS[1:2], []])
def test_items_of_responses_keep_their_form_and_their_place(items: list[Any]):
    attributes = attributes_from("responses", items, status="completed")
    request = {"tools": SHELL_TOOLS}
    whole = loads(answer_body(attributes, "responses", request))
    streamed = assembled("responses", answer_chunks(attributes, "responses", request))
    assert streamed["output"] == whole["output"]
    ids = [one["id"] for one in whole["output"]]
    assert len({*ids}) == len(ids)
    made = ("message", "custom_tool_call")
    for found, item in zip(whole["output"], items, strict=True):
        more = {"id": found["id"], "status": "completed"} if item["type"] in made else {}
        assert found == {**item, **more}


def test_the_pieces_of_a_stream_of_items_are_its_texts():
    attributes = attributes_from("responses", ITEMS, status="completed")
    assembler = get_protocol("responses").assembler()
    body = b"".join(answer_chunks(attributes, "responses", {"tools": SHELL_TOOLS}))
    for event in SseSplitter().feed(body):
        value = loads(event.data)
        if value["type"] not in ("response.output_item.done", "response.completed"):
            assembler.feed(value)
    found = assembler.result()["output"]
    texts = [part for item in found for part in item.get("content", ())]
    assert [part.get("text", part.get("refusal")) for part in texts] == [
        "I look it up. ",
        "It is 4. " * 9,
        "No.",
    ]
    assert found[-1]["input"] == "*** Begin"


def test_each_text_of_a_response_has_the_log_probabilities_of_its_tokens():
    first, second = ([{"token": text, "logprob": -1.0}] for text in ("One. ", "Two."))
    items = [said("One. ", logprobs=first), said("Two.", logprobs=second)]
    attributes = attributes_from("responses", items, status="completed")
    whole = loads(answer_body(attributes, "responses", {"logprobs": True}))
    told = [one["content"][0]["logprobs"] for one in whole["output"]]
    assert [[one["token"] for one in entries] for entries in told] == [["One. "], ["Two."]]


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://i"}}


@pytest.mark.parametrize(
    ("protocol", "blocks", "more"),
    [
        ("messages", [IMAGE], {}),
        ("messages", [SEARCH], {"agl.proxy.backend_protocol": "responses"}),
        ("responses", [said("", type="output_audio")], {}),
        ("chat", [SEARCH], {}),
    ],
)
def test_a_part_that_cannot_be_restored_is_not_left_out(
    protocol: Protocol, blocks: list[Any], more: dict[str, Any]
):
    recorder: Protocol = "messages" if protocol == "chat" else protocol
    attributes = {**attributes_from(recorder, blocks, stop_reason="end_turn"), **more}
    with pytest.raises(genai.CodecError, match="part of the type"):
        answer_body(attributes, protocol, {})
    with pytest.raises(genai.CodecError, match="part of the type"):
        answer_chunks(attributes, protocol, {})


@pytest.mark.parametrize(
    ("protocol", "blocks", "end"),
    [("messages", BLOCKS, "content_block_stop"), ("responses", ITEMS, "response.output_item.done")],
)
def test_the_last_block_of_a_broken_stream_stays_open(
    protocol: Protocol, blocks: list[Any], end: str
):
    attributes = attributes_from(protocol, blocks)
    body = b"".join(answer_chunks(attributes, protocol, {}, whole=False))
    kinds = [loads(event.data)["type"] for event in SseSplitter().feed(body)]
    assert kinds.count(end) == len(blocks) - 1
    assert kinds[-1].endswith("delta")


TEXT = {"type": "text", "text": "Act"}


@pytest.mark.parametrize(
    ("reason", "sequence", "blocks"),
    [
        ("stop_sequence", "Obs:", [TEXT]),
        ("stop_sequence", None, [TEXT]),
        ("stop_sequence", "Obs:", [CALL]),
        ("pause_turn", None, [SEARCH, FOUND]),
        ("model_context_window_exceeded", None, [TEXT]),
        ("compaction", None, [TEXT]),
        ("end_turn", None, [TEXT]),
        ("end_turn", None, [CALL]),
        ("tool_use", None, [CALL]),
        ("max_tokens", None, [CALL]),
        ("refusal", None, []),
    ],
)
def test_a_message_stops_for_its_own_reason(reason: str, sequence: str | None, blocks: list[Any]):
    end = {"stop_reason": reason, "stop_sequence": sequence}
    attributes = attributes_from("messages", blocks, **end)
    whole = loads(answer_body(attributes, "messages", {}))
    streamed = assembled("messages", answer_chunks(attributes, "messages", {}))
    assert {key: whole[key] for key in end} == {key: streamed[key] for key in end} == end
    again = attributes_from("messages", blocks, **{key: whole[key] for key in end})
    assert again == attributes


def test_a_response_stops_for_its_own_reason():
    end = {"status": "incomplete", "incomplete_details": {"reason": "max_tool_calls"}}
    attributes = attributes_from("responses", [said("Act")], **end)
    whole = loads(answer_body(attributes, "responses", {}))
    streamed = assembled("responses", answer_chunks(attributes, "responses", {}))
    assert {key: whole[key] for key in end} == {key: streamed[key] for key in end} == end


CUSTOM = {"id": "c1", "type": "custom", "custom": {"name": "code", "input": "print(1)"}}
FUNCTION = {"id": "c2", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
OLD = {"function_call": {"name": "look_up", "arguments": '{"x":1}'}}


@pytest.mark.parametrize(
    ("message", "end"),
    [
        ({"tool_calls": [CUSTOM, FUNCTION]}, {"finish_reason": "tool_calls"}),
        (OLD, {"finish_reason": "function_call"}),
        ({"content": "Act"}, {"finish_reason": "stop", "stop_reason": "Obs:"}),
        ({"content": "Act"}, {"finish_reason": "stop", "native_finish_reason": "eos"}),
    ],
)
def test_a_chat_answer_has_its_form_and_its_end(message: dict[str, Any], end: dict[str, Any]):
    said = {"role": "assistant", "content": None, **message}
    choices = [{"index": n, "message": said, "logprobs": None, **end} for n in range(2)]
    attributes = genai.response_attributes({"id": "c", "model": "m", "choices": choices})
    assert loads(answer_body(attributes, "chat", {}))["choices"] == choices

    chunks = answer_chunks(attributes, "chat", {})
    streamed = assembled("chat", chunks, 2)
    assert genai.response_attributes(streamed) == attributes
    deltas = [loads(event.data)["choices"][0]["delta"] for event in events_of(chunks)]
    assert {key for delta in deltas for key in delta} == {"role", *message} | (
        {"content"} if "content" in message else set()
    )


@pytest.mark.parametrize("call", [CUSTOM, FUNCTION])
def test_a_record_without_kinds_has_calls_of_functions(call: dict[str, Any]):
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choices = [{"message": message, "finish_reason": "tool_calls"}]
    attributes = genai.response_attributes({"id": "c", "choices": choices})
    (said,) = loads(attributes["gen_ai.output.messages"].encode())
    said["parts"] = [{k: part[k] for k in part if k != "kind"} for part in said["parts"]]
    attributes["gen_ai.output.messages"] = genai.dumps([said]).decode()
    (found,) = loads(answer_body(attributes, "chat", {}))["choices"]
    assert [one["type"] for one in found["message"]["tool_calls"]] == ["function"]


def test_a_broken_stream_has_no_end():
    attributes = recorded([{"type": "text", "content": "hi"}])
    chunks = answer_chunks(attributes, "chat", {}, whole=False)
    assert b"[DONE]" not in b"".join(chunks)
    assert b'"finish_reason":"stop"' not in b"".join(chunks)
    assert b"hi" in b"".join(chunks)
