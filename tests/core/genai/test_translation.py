"""Round trips through other protocols keep requests, responses and streams unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_core.genai import (
    CodecError,
    Protocol,
    dumps,
    get_protocol,
    lost_in_request,
    lost_in_response,
    response_events,
    stream_translator,
    translate_request,
    translate_response,
)

OTHERS: tuple[Protocol, ...] = ("messages", "responses")

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
name = st.text("abcdefgh_", min_size=1, max_size=8)
scalars = st.none() | st.booleans() | st.integers(-9, 9) | text
arguments = st.dictionaries(name, scalars | st.lists(scalars, max_size=2), max_size=3)


def call(number: int, function: str, given: Any) -> dict[str, Any]:
    written = given if isinstance(given, str) else dumps(given).decode()
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": function, "arguments": written},
    }


@st.composite
def tool_calls(draw: Any, *, least: int = 0) -> list[dict[str, Any]]:
    # A model's arguments may be invalid JSON, and must pass through unchanged.
    drawn = draw(
        st.lists(st.tuples(name, arguments | st.just("{broken")), min_size=least, max_size=3)
    )
    return [call(number, *pair) for number, pair in enumerate(drawn)]


text_part = text.map(lambda t: {"type": "text", "text": t})
image_part = st.sampled_from(
    [
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    ]
)
parts = st.tuples(image_part, st.lists(text_part | image_part, max_size=2)).map(
    lambda found: [found[0], *found[1]]
)
user = (text | parts).map(lambda content: {"role": "user", "content": content})


@st.composite
def turn(draw: Any) -> list[dict[str, Any]]:
    """A user's message, and the answers of an assistant and its tools."""
    calls = draw(tool_calls())
    content = draw(text if not calls else text | st.none())
    said: dict[str, Any] = {"role": "assistant", "content": content}
    if draw(st.booleans()):
        said["reasoning_content"] = draw(text)
    if calls:
        said["tool_calls"] = calls
    answers = [
        {"role": "tool", "tool_call_id": made["id"], "content": draw(text)} for made in calls
    ]
    # Two user messages without an answer between them would be merged into one.
    return [draw(user), said, *answers] if not calls else [draw(user), said, *answers, final()]


def final() -> dict[str, Any]:
    return {"role": "assistant", "content": "so be it"}


@st.composite
def requests(draw: Any) -> dict[str, Any]:
    messages = [message for made in draw(st.lists(turn(), max_size=2)) for message in made]
    request: dict[str, Any] = {
        "model": "m",
        "messages": [*messages, draw(user)],
        "max_tokens": draw(st.integers(1, 99)),
    }
    if draw(st.booleans()):
        request["messages"].insert(0, {"role": "system", "content": draw(text)})
    if draw(st.booleans()):
        request["temperature"] = 0.5
        request["stream"] = True
        request["stream_options"] = {"include_usage": True}
    if draw(st.booleans()):
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        function = {"name": draw(name), "description": "d", "parameters": schema}
        request["tools"] = [{"type": "function", "function": function}]
        named = {"type": "function", "function": {"name": function["name"]}}
        request["tool_choice"] = draw(st.sampled_from(["auto", "required", "none", named]))
        if draw(st.booleans()):
            request["parallel_tool_calls"] = False
    if draw(st.booleans()):
        request["user"] = "u"
    if draw(st.booleans()):
        schema = {"name": "output", "schema": {"type": "object"}, "strict": True}
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    return request


@st.composite
def responses(draw: Any) -> dict[str, Any]:
    calls = draw(tool_calls())
    said: dict[str, Any] = {"role": "assistant", "content": draw(text)}
    if calls and draw(st.booleans()):
        said["content"] = None
    if draw(st.booleans()):
        said["reasoning_content"] = draw(text)
    if calls:
        said["tool_calls"] = calls
    finish = draw(st.sampled_from(["length", "tool_calls" if calls else "stop"]))
    prompt, completion = draw(st.integers(0, 99)), draw(st.integers(0, 99))
    return {
        "id": "r1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [{"index": 0, "message": said, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
    }


def chunks(response: dict[str, Any], size: int = 3) -> list[dict[str, Any]]:
    """A chat stream of the response, in pieces of ``size`` characters."""
    choice = response["choices"][0]
    said = choice["message"]
    head = {"id": response["id"], "created": response["created"], "model": response["model"]}

    def chunk(delta: Any, finish: Any = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    made = [chunk({"role": "assistant", "content": ""})]
    for key in ("reasoning_content", "content"):
        whole = said.get(key) or ""
        made += [chunk({key: whole[i : i + size]}) for i in range(0, len(whole), size)]
    for index, item in enumerate(said.get("tool_calls", ())):
        function = {**item["function"], "arguments": ""}
        made.append(chunk({"tool_calls": [{**item, "index": index, "function": function}]}))
        whole = item["function"]["arguments"]
        for i in range(0, len(whole), size):
            piece = {"index": index, "function": {"arguments": whole[i : i + size]}}
            made.append(chunk({"tool_calls": [piece]}))
    made.append(chunk({}, choice["finish_reason"]))
    return [*made, {**head, "choices": [], "usage": response["usage"]}]


def through(events: list[dict[str, Any]], source: Protocol, target: Protocol) -> list[Any]:
    translator = stream_translator(source, target, usage=True)
    made = [made for event in events for made in translator.feed(event)]
    return made + translator.close()


def assembled(events: list[dict[str, Any]], protocol: Protocol) -> dict[str, Any]:
    assembler = get_protocol(protocol).assembler()
    for event in events:
        assembler.feed(event)
    assert assembler.finished and assembler.error is None
    return assembler.result()


def without(value: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in keys}


@pytest.mark.parametrize("other", OTHERS)
@given(requests())
def test_round_trips_of_requests(other: Protocol, request: dict[str, Any]):
    before = dumps(request)
    there = translate_request("chat", other, request)
    assert dumps(request) == before, "the original is not changed"
    back = translate_request(other, "chat", there)
    expected = request
    if other == "messages":  # Messages accepts only reasoning that Anthropic signed
        expected = {
            **request,
            "messages": [without(message, "reasoning_content") for message in request["messages"]],
        }
        if request.get("tool_choice") == "none":  # no call is made, so not two at once either
            expected = without(expected, "parallel_tool_calls")
    assert back == expected


@given(requests())
def test_messages_and_responses_meet_in_chat(request: dict[str, Any]):
    message = translate_request("chat", "messages", request)
    there = translate_request("messages", "responses", message)
    assert translate_request("responses", "messages", there) == message


@pytest.mark.parametrize("other", OTHERS)
@given(responses())
def test_round_trips_of_responses(other: Protocol, response: dict[str, Any]):
    back = translate_response(other, "chat", translate_response("chat", other, response))
    assert without(back, "created") == without(response, "created")


@pytest.mark.parametrize("other", OTHERS)
@given(responses(), st.integers(1, 5))
def test_a_translated_stream_amounts_to_the_translated_response(
    other: Protocol, response: dict[str, Any], size: int
):
    events = through(chunks(response, size), "chat", other)
    whole = translate_response("chat", other, response)
    got = assembled(events, other)
    if other == "messages":
        for block in got["content"]:  # invalid JSON looks like a truncated stream
            if isinstance(block.get("input"), str):
                block["input"] = {"__raw_arguments": block["input"]}
    assert got == whole

    back = assembled(through(events, other, "chat"), "chat")
    assert without(back, "created", "object") == without(response, "created", "object")


@given(responses())
def test_streams_between_messages_and_responses(response: dict[str, Any]):
    events = through(chunks(response), "chat", "messages")
    got = assembled(through(events, "messages", "responses"), "responses")
    expected = translate_response("chat", "responses", response)
    assert without(got, "created_at") == without(expected, "created_at")


@given(responses())
def test_every_event_of_responses_is_numbered_and_items_open_before_they_close(
    response: dict[str, Any],
):
    events = through(chunks(response), "chat", "responses")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    opened = [e["output_index"] for e in events if e["type"] == "response.output_item.added"]
    closed = {e["output_index"] for e in events if e["type"] == "response.output_item.done"}
    assert opened == sorted(opened) and set(opened) == closed


def test_fields_of_messages_become_their_equivalents_in_chat():
    made = translate_request(
        "messages",
        "chat",
        {
            "model": "m",
            "max_tokens": 9,
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "x"}}],
            "stop_sequences": ["END"],
            "top_k": 4,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "42"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
                        },
                        {"type": "text", "text": "and now?"},
                    ],
                }
            ],
        },
    )
    assert made == {
        "model": "m",
        "max_tokens": 9,
        "stop": ["END"],
        "top_k": 4,
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "tool", "tool_call_id": "t1", "content": "42"},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                    {"type": "text", "text": "and now?"},
                ],
            },
        ],
    }


@pytest.mark.parametrize(
    ("source", "target", "request_", "why"),
    [
        ("responses", "chat", {"previous_response_id": "r"}, "previous_response_id"),
        ("messages", "chat", {"thread": {"type": "continue"}}, "send the whole conversation"),
        ("responses", "chat", {"tools": [{"type": "local_shell"}]}, "local_shell"),
        ("responses", "chat", {"input": [{"type": "item_reference"}]}, "item_reference"),
        ("messages", "chat", {"tools": [{"type": "bash_20250124"}]}, "bash_20250124"),
        ("chat", "messages", {"n": 2}, "n must be 1"),
        ("chat", "responses", {"n": 2}, "n must be 1"),
        (
            "chat",
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "input_audio",
        ),
        ("completions", "chat", {}, "completions"),
    ],
)
def test_content_without_an_equivalent_is_refused(
    source: Protocol, target: Protocol, request_: Any, why: str
):
    with pytest.raises(CodecError, match=why):
        translate_request(source, target, request_)


def test_vllms_stop_string_is_the_stop_sequence():
    choice = {"message": {"content": "a"}, "finish_reason": "stop", "stop_reason": "END"}
    made = translate_response("chat", "messages", {"choices": [choice]})
    assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", "END")
    back = translate_response("messages", "chat", made)
    assert back["choices"][0]["stop_reason"] == "END"


@pytest.mark.parametrize(
    ("asked", "matched", "expected"),
    [
        ({"stop_sequences": ["END"]}, "END", ("stop_sequence", "END")),
        (None, "END", ("stop_sequence", "END")),
        ({"stop_sequences": ["END"]}, "<|im_end|>", ("end_turn", None)),  # the template's own
        ({}, "END", ("end_turn", None)),
        ({"stop_sequences": ["END"]}, 151645, ("end_turn", None)),
    ],
)
def test_sglangs_stop_string_is_the_stop_sequence(asked: Any, matched: Any, expected: Any):
    end = {"finish_reason": "stop", "matched_stop": matched}
    answer = {"choices": [{"message": {"content": "a"}, **end}]}
    whole = translate_response("chat", "messages", answer, asked)
    assert (whole["stop_reason"], whole["stop_sequence"]) == expected
    chunks = [{"choices": [{"delta": {"content": "a"}}]}, {"choices": [{"delta": {}, **end}]}]
    translator = stream_translator("chat", "messages", request=asked)
    events = [event for chunk in chunks for event in translator.feed(chunk)] + translator.close()
    assert events[-2]["delta"] == {"stop_reason": expected[0], "stop_sequence": expected[1]}
    assert assembled(chunks, "chat")["choices"][0]["matched_stop"] == matched


@pytest.mark.parametrize("other", OTHERS)
def test_an_error_within_a_stream_is_one_in_the_other(other: Protocol):
    made = through([{"error": {"message": "out of memory", "code": 500}}], "chat", other)
    assembler = get_protocol(other).assembler()
    for event in made:
        assembler.feed(event)
    assert assembler.error == "out of memory"
    assert not assembler.finished


# -- content without an equivalent -----------------------------------------------------------------

SIGNED = {"type": "thinking", "thinking": "let me see", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "eHh4"}


def signed_message() -> dict[str, Any]:
    content = [SIGNED, HIDDEN, {"type": "text", "text": "yes"}]
    head = {"id": "m", "type": "message", "role": "assistant", "model": "q"}
    usage = {"input_tokens": 3, "output_tokens": 4}
    end = {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
    return {**head, "content": content, **end}


def test_signed_thoughts_survive_the_way_through_chat():
    message = signed_message()
    made = translate_response("messages", "chat", message)
    said = made["choices"][0]["message"]
    assert said["reasoning_content"] == "let me see"
    assert translate_response("chat", "messages", made) == message
    # An agent that returns its message unchanged returns the blocks that Anthropic signed.
    request = {"model": "q", "messages": [{"role": "user", "content": "?"}, said]}
    back = translate_request("chat", "messages", request)
    assert back["messages"][1]["content"] == message["content"]
    assert lost_in_request("chat", "messages", request) == []


def test_unsigned_thoughts_are_not_sent_to_anthropic():
    unsigned = {"type": "thinking", "thinking": "let me see", "signature": None}
    said = {"role": "assistant", "content": "yes", "thinking_blocks": [unsigned]}
    request = {"model": "q", "messages": [{**said, "reasoning_content": "let me see"}]}
    made = translate_request("chat", "messages", request)
    assert made["messages"] == [{"role": "assistant", "content": "yes"}]
    assert lost_in_request("chat", "messages", request) == ["reasoning_content"]


def thought(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


SEVERAL = [thought("let me see. ", "c2ln"), words("Hm. "), thought("so", "b3Ro"), words("yes")]


def message_events(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a message as the events of a stream."""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": []}}
    ]
    for index, block in enumerate(message["content"]):
        texts = [key for key in ("thinking", "text", "signature") if block.get(key)]
        empty = {**block, **dict.fromkeys(texts, "")}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        for key in texts:
            for piece in filter(None, (block[key][:3], block[key][3:])):
                delta = {"type": f"{key}_delta", key: piece}
                events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end = {key: message[key] for key in ("stop_reason", "stop_sequence")}
    events.append({"type": "message_delta", "delta": end, "usage": message["usage"]})
    return [*events, {"type": "message_stop"}]


def test_several_signed_thoughts_survive_the_way_through_chat():
    message = {**signed_message(), "content": SEVERAL}
    made = translate_response("messages", "chat", message)
    back = translate_response("chat", "messages", made)
    assert back["content"] == [SEVERAL[0], SEVERAL[2], words("Hm. yes")]
    assert lost_in_response("chat", "messages", made) == []
    chunks = through(message_events(message), "messages", "chat")
    assert assembled(chunks, "chat")["choices"] == made["choices"]
    assert assembled(through(chunks, "chat", "messages"), "messages")["content"] == SEVERAL


def test_several_thoughts_are_one_reasoning_in_responses():
    message = {**signed_message(), "content": SEVERAL}
    whole = translate_response("messages", "responses", message)["output"]
    streamed = assembled(through(message_events(message), "messages", "responses"), "responses")
    for output in (whole, streamed["output"]):
        assert [[part["text"] for part in item["content"]] for item in output] == [
            ["let me see. so"],
            ["Hm. yes"],
        ]
    assert lost_in_response("messages", "responses", message) == ["thinking.signature"]


def test_unsigned_thoughts_beside_signed_ones_are_kept_or_named():
    blocks = [thought("first", ""), thought("let me see. ", "c2ln"), thought("last", "")]
    signed = [block for block in blocks if block["signature"]]
    said = {"role": "assistant", "content": "yes", "thinking_blocks": signed}
    said["reasoning_content"] = "firstlet me see. last"
    choice = {"index": 0, "message": said, "finish_reason": "stop", "logprobs": None}
    made = translate_response("chat", "messages", {"id": "m", "model": "q", "choices": [choice]})
    assert made["content"] == [*blocks, words("yes")]
    request = {"model": "q", "messages": [said]}
    back = translate_request("chat", "messages", request)
    assert back["messages"][0]["content"] == [*signed, words("yes")]
    assert lost_in_request("chat", "messages", request) == ["reasoning_content"]


def test_signed_thoughts_survive_streams():
    message = signed_message()
    chunks = through(message_events(message), "messages", "chat")
    expected = translate_response("messages", "chat", message)["choices"]
    assert assembled(chunks, "chat")["choices"] == expected
    again = assembled(through(chunks, "chat", "messages"), "messages")
    assert again["content"] == message["content"]


RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True}
LOSSES: Any = [
    (
        "messages",
        "chat",
        {"messages": [{"role": "user", "content": [RESULT]}]},
        ["tool_result.is_error"],
    ),
    (
        "messages",
        "chat",
        {
            "thinking": {"type": "enabled"},
            "messages": [{"role": "assistant", "content": [SIGNED, HIDDEN]}],
        },
        ["redacted_thinking", "thinking", "thinking.signature"],
    ),
    ("messages", "chat", {"messages": [{"role": "user", "content": "hi"}], "top_k": 3}, []),
    (
        "chat",
        "messages",
        {"messages": [], "seed": 1, "logprobs": True, "logit_bias": None},
        ["logprobs", "seed"],
    ),
    (
        "chat",
        "messages",
        {"messages": [{"role": "assistant", "content": "", "reasoning_content": "hm"}]},
        ["reasoning_content"],
    ),
    ("chat", "responses", {"messages": [], "stop": ["x"], "n": 1, "stream": True}, ["stop"]),
    (
        "responses",
        "chat",
        {"input": [{"type": "reasoning", "encrypted_content": "x"}], "truncation": "auto"},
        ["reasoning.encrypted_content", "truncation"],
    ),
    (
        "messages",
        "responses",
        {"messages": [{"role": "user", "content": [RESULT]}], "stop_sequences": ["x"]},
        ["stop", "tool_result.is_error"],
    ),
]


@pytest.mark.parametrize(("source", "target", "request_", "names"), LOSSES)
def test_fields_that_a_request_loses_are_named(
    source: Protocol, target: Protocol, request_: dict[str, Any], names: list[str]
):
    assert lost_in_request(source, target, request_) == names
    translate_request(source, target, request_)  # lost, but not refused


NOT_FOR_CHAT: dict[Protocol, dict[str, Any]] = {
    "messages": {
        "billing_policy": {"type": "billing_policy", "bill_to": "self"},
        "compaction": {"type": "compact"},
        "diagnostics": {"previous_message_id": None},
        "fallback_credit_token": "t",
        "fallbacks": [{"model": "other"}],
        "thread": {"type": "create"},
        "user_profile_id": "u",
        "workspace_id": "w",
    },
    "responses": {
        "access_programs": {"bio": True},
        "background_options": {"window": "2h"},
        "context_management": [{"type": "compaction"}],
        "image": {"detail": "low"},
    },
}


@pytest.mark.parametrize(
    ("source", "names"),
    [("messages", ["compaction", "fallbacks"]), ("responses", ["context_management", "image"])],
)
def test_parameters_of_one_provider_do_not_reach_chat(source: Protocol, names: list[str]):
    asked = [{"role": "user", "content": "hi"}]
    plain = {"model": "m", "input" if source == "responses" else "messages": asked}
    request = {**plain, **NOT_FOR_CHAT[source]}
    chat = translate_request(source, "chat", request)
    assert chat == translate_request(source, "chat", plain)
    assert lost_in_request(source, "chat", request) == names, "those that change an answer"


def test_parameters_that_chat_has_too_reach_it():
    shared = {"moderation": {"model": "m"}, "prompt_cache_options": {"mode": "explicit"}}
    chat = translate_request("responses", "chat", {"input": "q", **shared})
    assert shared.items() <= chat.items()


def test_fields_that_a_response_loses_are_named():
    message = signed_message()
    message["content"] += [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    ]
    assert lost_in_response("messages", "chat", message) == ["server_tool_use"]
    assert lost_in_response("messages", "responses", message) == [
        "server_tool_use",
        "thinking.signature",
    ]
    reasoning = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    assert lost_in_response("responses", "chat", {"output": [reasoning]}) == [
        "reasoning.encrypted_content"
    ]


@pytest.mark.parametrize("other", OTHERS)
@given(request=requests())
def test_fields_that_survive_a_round_trip_are_not_named_as_lost(
    other: Protocol, request: dict[str, Any]
):
    thought = any("reasoning_content" in message for message in request["messages"])
    expected = ["reasoning_content"] if other == "messages" and thought else []
    assert lost_in_request("chat", other, request) == expected


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "run"}}


@pytest.mark.parametrize(("strict", "made"), [(None, False), (False, False), (True, True)])
@pytest.mark.parametrize("source", ["chat", "messages"])
def test_a_tool_stays_as_strict_as_it_was_in_responses(
    source: Protocol, strict: bool | None, made: bool
):
    """Responses is strict unless the tool says otherwise, chat and Messages only if it says so."""
    request: dict[str, Any] = {"messages": [], "tools": [{"name": "run", "input_schema": {}}]}
    if strict is not None:
        request["tools"][0]["strict"] = strict
    if source == "chat":
        request = translate_request("messages", "chat", request)
    (tool,) = translate_request(source, "responses", request)["tools"]
    assert tool["strict"] is made
    (back,) = translate_request("responses", "chat", {"input": "q", "tools": [tool]})["tools"]
    assert back["function"].get("strict", False) is made


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        (None, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", {"type": "any", "disable_parallel_tool_use": True}),
        ("none", {"type": "none"}),
    ],
)
def test_calls_one_at_a_time_are_a_field_of_choices_that_call(choice: Any, made: Any):
    request = {"messages": [], "tools": [TOOL], "parallel_tool_calls": False, "tool_choice": choice}
    assert translate_request("chat", "messages", request)["tool_choice"] == made


def test_the_choice_of_a_tool_that_was_left_out_is_left_out():
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [hosted, {"name": "run", "input_schema": {}}],
        "tool_choice": {"type": "tool", "name": "web_search"},
    }
    assert "tool_choice" not in translate_request("messages", "chat", request)
    request["tool_choice"]["name"] = "run"
    assert translate_request("messages", "chat", request)["tool_choice"] == TOOL


def test_json_without_a_schema_is_named_as_lost():
    request = {"messages": [], "response_format": {"type": "json_object"}}
    assert lost_in_request("chat", "messages", request) == ["response_format"]
    assert lost_in_request("chat", "responses", request) == []


@pytest.mark.parametrize("other", ["messages", "responses"])
def test_calls_in_the_form_before_tools_get_ids(other: Protocol):
    call = {"name": "run", "arguments": "{}"}
    request = {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "run", "content": "1"},
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "run", "content": "2"},
        ]
    }
    chat = translate_request(other, "chat", translate_request("chat", other, request))
    ids = [call["id"] for one in chat["messages"] for call in one.get("tool_calls", ())]
    results = [(one["tool_call_id"], one["content"]) for one in chat["messages"][2::2]]
    assert len(set(ids)) == 2
    assert results == [(ids[0], "1"), (ids[1], "2")]


USAGE: dict[Protocol, dict[str, Any]] = {
    "chat": {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
    "messages": {
        "input_tokens": 3,
        "output_tokens": 5,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 3,
        "output_tokens_details": {"thinking_tokens": 2},
    },
    "responses": {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "output_tokens_details": {"reasoning_tokens": 2},
    },
}


@pytest.mark.parametrize("target", USAGE)
@pytest.mark.parametrize("source", USAGE)
def test_tokens_of_thoughts_and_of_the_cache_are_counted_in_each_protocol(
    source: Protocol, target: Protocol
):
    choice = {"message": {"content": "a"}, "finish_reason": "stop"}
    chat: dict[str, Any] = {"id": "c", "model": "m", "choices": [choice]}
    whole = chat if source == "chat" else translate_response("chat", source, chat)
    whole["usage"] = USAGE[source]
    made = translate_response(source, target, whole)
    assert made["usage"] == USAGE[target]
    recorded = get_protocol(source).recorded_response(whole)
    assert recorded["usage"] == USAGE["chat"]
    if source != target:
        events = response_events(source, target, whole, usage=True)
        assert assembled(events, target)["usage"] == USAGE[target]


def test_cached_tokens_that_are_counted_apart_leave_no_negative_count():
    usage = {"prompt_tokens": 0, "prompt_tokens_details": {"cached_tokens": 5}}
    made = translate_response("chat", "messages", {"choices": [], "usage": usage})["usage"]
    assert made["input_tokens"] == 0
    assert made["cache_read_input_tokens"] == 5
