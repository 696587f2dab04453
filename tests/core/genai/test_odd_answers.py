"""Answers of servers that end, fail, count or number otherwise than their protocol describes."""

from __future__ import annotations

from typing import Any

import pytest

from agl_core import genai
from agl_core.genai import (
    PROTOCOLS,
    ExtraFields,
    Protocol,
    get_protocol,
    lost_in_request,
    lost_in_response,
    response_events,
    translate_request,
    translate_response,
)
from agl_core.genai._attributes import message_parts

from .server_streams import Json, assembled, calls_of, chunk, fed, piece, through

SPOKEN: tuple[Protocol, ...] = ("chat", "messages", "responses")
A, B = '{"p":1}', '{"p":2}'
CALLS = [("read", A), ("read", B)]


def texts(source: Protocol, events: list[Json], *, ended: bool = False) -> dict[str, Any]:
    """Return the text that agents of each protocol get."""
    found: dict[str, Any] = {}
    for target in SPOKEN:
        made = through(source, target, events, ended=ended)
        found[target] = assembled(target, made)["choices"][0]["message"]["content"]
    return found


def all_of(value: Any) -> dict[str, Any]:
    return dict.fromkeys(SPOKEN, value)


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("none", ["", "null", None])
def test_an_empty_finish_reason_does_not_end_a_stream(none: str | None):
    events = [chunk({"content": "a"}, none), chunk({"content": "b"}, none)]
    assert not fed("chat", events).finished
    assert through("chat", "messages", events)[-1]["type"] == "content_block_delta"
    assert through("chat", "responses", events)[-1]["type"] == "response.output_text.delta"
    assert texts("chat", [*events, chunk({}, "stop")]) == all_of("ab")


def test_done_ends_a_stream_without_a_finish_reason():
    events = [chunk({"content": "a"})]
    assert through("chat", "messages", events, ended=True)[-2]["delta"]["stop_reason"] == "end_turn"
    last = through("chat", "responses", events, ended=True)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.completed", "completed")
    called = [chunk({"tool_calls": [piece(0, "a1", "read", A)]})]
    assert through("chat", "messages", called, ended=True)[-2]["delta"]["stop_reason"] == "tool_use"
    assert through("chat", "messages", [], ended=True) == []
    assert through("chat", "responses", [], ended=True) == []


def test_an_empty_stop_reason_does_not_end_a_stream():
    start = {"type": "message_start", "message": {"id": "m", "stop_reason": ""}}
    delta = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "a"},
    }
    early = {"type": "message_delta", "delta": {"stop_reason": ""}, "usage": None}
    assert not fed("messages", [start, delta, early]).finished
    assert not through("messages", "chat", [start, delta, early])[-1]["choices"][0]["finish_reason"]


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [None, "", {}, False])
def test_an_empty_error_field_is_not_an_error(nothing: Any):
    events = [chunk({"content": "a"}), chunk({}, "stop")]
    events = [{**event, "error": nothing} for event in events]
    assert fed("chat", events).error is None
    assert texts("chat", events) == all_of("a")


@pytest.mark.parametrize(
    ("source", "event"),
    [
        ("chat", {"object": "error", "message": "too long", "code": 400}),
        ("messages", {"error": {"type": "overloaded_error", "message": "too long"}}),
        ("responses", {"error": {"message": "too long", "code": 400}}),
    ],
)
def test_an_error_event_of_another_form(source: Protocol, event: Json):
    assert fed(source, [event]).error == "too long"
    for target in SPOKEN:
        assert fed(target, through(source, target, [event])).error == "too long"


@pytest.mark.parametrize("told", [{"error": {"code": 503, "message": "gone"}}, {}])
def test_a_choice_that_ends_with_an_error(told: Json):
    events = [chunk({"content": "a"}), chunk({}, "error", **told)]
    expected = "gone" if told else "the backend ended the answer with an error"
    for target in SPOKEN:
        made = through("chat", target, events)
        assert fed(target, made).error == expected
        assert target == "chat" or made[-1]["type"] == "error"


# -- pieces ----------------------------------------------------------------------------------------


def test_a_chunk_may_have_a_message_in_place_of_a_delta():
    def whole(text: str, finish: str | None = None, **more: Any) -> Json:
        choice = {"index": 0, "message": {"content": text}, "finish_reason": finish, **more}
        return {"id": "c1", "choices": [choice]}

    assert texts("chat", [whole("a"), whole("b", "stop")]) == all_of("ab")
    again = [chunk({"content": "a"}), chunk({"content": "b"}), whole("ab", "stop", delta={})]
    assert texts("chat", again) == all_of("ab")


@pytest.mark.parametrize("streamed", [True, False])
def test_a_function_call_is_a_tool_call(streamed: bool):
    call = {"name": "read", "arguments": A}
    if streamed:
        parts = [{"name": "read", "arguments": ""}, {"arguments": A[:3]}, {"arguments": A[3:]}]
        events = [chunk({"function_call": part}) for part in parts]
        events.append(chunk({}, "function_call"))
        for target in SPOKEN:
            assert calls_of(assembled(target, through("chat", target, events))) == CALLS[:1]
        return
    message = {"role": "assistant", "content": None, "function_call": call}
    response = {"id": "c", "choices": [{"message": message, "finish_reason": "function_call"}]}
    (part,) = message_parts(message)
    assert (part["type"], part["name"], part["arguments"]) == ("tool_call", "read", A)
    assert translate_response("chat", "messages", response)["stop_reason"] == "tool_use"
    assert translate_response("chat", "responses", response)["output"][0]["name"] == "read"


def test_choices_without_an_index_are_one_message():
    calls = [{"id": "a", "type": "function", "function": {"name": "read", "arguments": A}}]
    choices = [
        {"finish_reason": "tool_calls", "message": {"role": "assistant", "content": "I look"}},
        {"finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": calls}},
    ]
    response = {"id": "c", "choices": choices}
    for target in SPOKEN:
        made = response if target == "chat" else translate_response("chat", target, response)
        recorded = get_protocol(target).recorded_response(made)
        (choice,) = recorded["choices"]
        assert choice["message"]["content"] == "I look"
        assert calls_of(recorded) == CALLS[:1]
    assert lost_in_response("chat", "messages", response) == []
    numbered = [{**choice, "index": index} for index, choice in enumerate(choices)]
    kept = get_protocol("chat").recorded_response({"choices": numbered})
    assert len(kept["choices"]) == 2


HEAD: Json = {"id": "resp_1", "model": "m", "output": [], "status": "in_progress"}


def response_call(number: int, arguments: str, **more: Any) -> Json:
    item = {"id": f"fc_{number}", "type": "function_call", "call_id": f"c{number}", "name": "read"}
    return {**item, "arguments": arguments, **more}


def responses_events(
    *, index: bool, added: bool = True, whole: bool = False, other_ids: bool = False, **more: Any
) -> list[Json]:
    """Return two calls, with odd places.

    Args:
        index: Whether all items have the index 0; otherwise they have none.
        added: Whether items begin with an event.
        whole: Whether the last event has the whole output.
        other_ids: Whether items have other ids at the end.
        more: Fields of each item.
    """
    events: list[Json] = [{"type": "response.created", "response": HEAD}]
    output: list[Json] = []
    for number, (_, arguments) in enumerate(CALLS):
        where = {"output_index": 0} if index else {}
        item = response_call(number, "", **more)
        if added:
            events.append({"type": "response.output_item.added", **where, "item": item})
        kind = "response.function_call_arguments.delta"
        events.append({"type": kind, **where, "item_id": item["id"], "delta": arguments})
        ids = {"id": f"other_{number}"} if other_ids else {}
        output.append({**item, "arguments": arguments, **ids})
        events.append({"type": "response.output_item.done", **where, "item": output[-1]})
    last = {**HEAD, "status": "completed", "output": output if whole else []}
    return [*events, {"type": "response.completed", "response": last}]


ODD_PLACES: dict[str, Json] = {
    "index 0 of every item": {"index": True},
    "index 0 of every item, whole at the end": {"index": True, "whole": True},
    "no index": {"index": False},
    "no index and empty ids": {"index": False, "id": ""},
    "index 0 of every item and empty ids": {"index": True, "id": "", "whole": True},
    "index 0 and other ids at the end": {"index": True, "other_ids": True, "whole": True},
    "items that begin with their end": {"index": True, "added": False},
}


@pytest.mark.parametrize("kind", ODD_PLACES)
def test_items_of_a_response_keep_apart(kind: str):
    events = responses_events(**ODD_PLACES[kind])
    for target in SPOKEN:
        assert calls_of(assembled(target, through("responses", target, events))) == CALLS


def test_a_text_without_an_item_is_the_assistants():
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "hey"}
    done = {"type": "response.completed", "response": {**HEAD, "status": "completed"}}
    events = [{"type": "response.created", "response": HEAD}, delta, done]
    assert texts("responses", events) == all_of("hey")


def test_an_item_that_was_not_streamed_is_sent_once():
    """The last event has an item more than the stream, before that of the stream."""
    text = {"type": "output_text", "text": "hey"}
    said = {"id": "msg_1", "type": "message", "role": "assistant", "content": [text]}
    thought = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
    }
    where = {"output_index": 0, "item_id": "msg_0"}
    last = {**HEAD, "status": "completed", "output": [thought, said]}
    events = [
        {"type": "response.created", "response": HEAD},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**said, "id": "msg_0", "content": []},
        },
        {"type": "response.output_text.delta", **where, "content_index": 0, "delta": "hey"},
        {"type": "response.completed", "response": last},
    ]
    message = assembled("chat", through("responses", "chat", events))["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("hey", "hm")


START: Json = {"id": "msg_1", "role": "assistant", "model": "c", "content": [], "stop_reason": None}
END: list[Json] = [
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": None},
    {"type": "message_stop"},
]


def test_blocks_of_a_message_keep_apart_that_all_have_index_0():
    events: list[Json] = [{"type": "message_start", "message": START}]

    def add(block: Json, delta: Json) -> None:
        events.append({"type": "content_block_start", "index": 0, "content_block": block})
        events.append({"type": "content_block_delta", "index": 0, "delta": delta})
        events.append({"type": "content_block_stop", "index": 0})

    add({"type": "text", "text": ""}, {"type": "text_delta", "text": "hi"})
    for number, (name, arguments) in enumerate(CALLS):
        block = {"type": "tool_use", "id": f"t{number}", "name": name, "input": {}}
        add(block, {"type": "input_json_delta", "partial_json": arguments})
    events += END
    assert texts("messages", events) == all_of("hi")
    for target in SPOKEN:
        assert calls_of(assembled(target, through("messages", target, events))) == CALLS


def test_a_message_may_come_whole_with_its_first_event():
    call = {"type": "tool_use", "id": "t", "name": "read", "input": {"p": 1}}
    whole = {**START, "content": [{"type": "text", "text": "hi"}, call]}
    events = [{"type": "message_start", "message": whole}, *END]
    assert texts("messages", events) == all_of("hi")
    for target in SPOKEN:
        assert calls_of(assembled(target, through("messages", target, events))) == CALLS[:1]


@pytest.mark.parametrize("kinds", [["refusal", "output_text"], ["output_text", "refusal"]])
def test_a_refusal_and_a_text_are_parts_of_their_own_in_a_stream(kinds: list[str]):
    deltas: Json = {"refusal": {"refusal": "No"}, "output_text": {"content": "But"}}
    chunks = [chunk(deltas[kind]) for kind in [*kinds, kinds[0]]]
    events = through("chat", "responses", [*chunks, chunk({}, "stop")])
    for step in ("added", "done"):
        name = f"response.content_part.{step}"
        parts = [(e["content_index"], e["part"]["type"]) for e in events if e["type"] == name]
        assert parts == [(0, kinds[0]), (1, kinds[1])]
    steps = ("delta", "delta", "delta", "done", "done")
    order = [0, 1, 0, 0, 1]
    found = [
        (event["type"], event["content_index"])
        for event in events
        if event["type"].split(".")[1] in kinds
    ]
    assert found == [
        (f"response.{kinds[index]}.{step}", index) for index, step in zip(order, steps, strict=True)
    ]
    (item,) = events[-1]["response"]["output"]
    assert [part["type"] for part in item["content"]] == kinds
    closed = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in closed] == [item]


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage",
    [[], "", {"prompt_tokens": "3", "completion_tokens": None, "prompt_tokens_details": []}],
)
def test_usage_of_another_form_breaks_no_answer(usage: Any):
    said = {"role": "assistant", "content": "a"}
    response = {"id": "c", "choices": [{"message": said, "finish_reason": "stop"}], "usage": usage}
    assert translate_response("chat", "messages", response)["content"][0]["text"] == "a"
    assert translate_response("chat", "responses", response)["output"][0]["content"]
    events = [chunk({"content": "a"}), chunk({}, "stop"), {"choices": [], "usage": usage}]
    assert texts("chat", events) == all_of("a")


def test_a_log_probability_may_be_missing():
    known = {"token": "b", "logprob": -0.5}
    response = {"choices": [{"message": {}, "logprobs": {"content": [None, known]}}]}
    found = genai.loads(genai.response_attributes(response)["logprobs.content"].encode())
    assert found == [{"token": None, "logprob": None}, known]


def test_an_id_may_be_a_number():
    assert genai.response_attributes({"id": 7, "choices": []})["gen_ai.response.id"] == "7"


def test_the_index_of_a_choice_may_be_text():
    events = [
        {"id": "c", "choices": [{"index": index, "delta": {"content": text}}]}
        for index, text in (("0", "a"), ("1", "b"), ("0", "c"), (1.0, "d"), ("x", "e"))
    ]
    choices = assembled("chat", events)["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["ace", "bd"]


def test_values_of_a_message_that_are_no_text_stay_in_the_message():
    """Citations, OpenRouter's reasoning and OpenAI's audio come in the deltas of a stream."""
    deltas = [
        {"content": "a", "annotations": [{"url": "1"}], "audio": {"id": "x", "data": "AA"}},
        {"annotations": [{"url": "2"}], "audio": {"data": "BB", "transcript": "on"}},
        {"reasoning_details": [{"text": "c"}], "audio": {"transcript": "e", "expires_at": 9}},
    ]
    whole = assembled("chat", [*map(chunk, deltas), chunk({}, "stop")])["choices"][0]
    assert whole["message"] == {
        "role": "assistant",
        "content": "a",
        "annotations": [{"url": "1"}, {"url": "2"}],
        "audio": {"id": "x", "data": "AABB", "transcript": "one", "expires_at": 9},
        "reasoning_details": [{"text": "c"}],
    }
    assert whole.keys() == {"index", "message", "finish_reason", "logprobs"}
    assert deltas[0]["audio"] == {"id": "x", "data": "AA"}


def test_usage_that_a_server_sends_unasked_is_kept():
    """Mistral sends it with the last choice, asked or not; vLLM in a chunk that was asked for."""
    extra = ExtraFields(usage=True)
    last = {**chunk({}, "stop"), "usage": {"total_tokens": 3}}
    assert not extra.strip(last) and last["usage"] == {"total_tokens": 3}
    assert extra.strip({"choices": [], "usage": {"total_tokens": 3}})
    empty = {**chunk({"content": "a"}), "usage": None}
    assert not extra.strip(empty) and "usage" not in empty


def test_what_gemini_adds_to_a_tool_call_is_kept_or_named():
    more = {"extra_content": {"google": {"thought_signature": "S"}}}
    first = {**piece(0, "a", "read", ""), "extra_content": None}
    rest = {**piece(0, None, None, A), **more}
    events = [chunk({"tool_calls": [call]}) for call in (first, rest)]
    whole = fed("chat", [*events, chunk({}, "stop")]).result()
    assert whole["choices"][0]["message"]["tool_calls"][0]["extra_content"] == more["extra_content"]
    for target in ("messages", "responses"):
        assert lost_in_response("chat", target, whole) == ["tool_calls.extra_content"]


# -- whole answers as streams ----------------------------------------------------------------------


@pytest.mark.parametrize("source", SPOKEN)
@pytest.mark.parametrize("target", SPOKEN)
def test_a_whole_answer_becomes_a_stream(source: Protocol, target: Protocol):
    if source == target:
        return
    calls = [
        {"id": f"a{number}", "type": "function", "function": {"name": name, "arguments": text}}
        for number, (name, text) in enumerate(CALLS)
    ]
    message = {"role": "assistant", "content": "hi", "reasoning_content": "hm", "tool_calls": calls}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    chat: Json = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message}]}
    chat["choices"][0]["finish_reason"] = "tool_calls"
    chat["usage"] = usage
    response = chat if source == "chat" else translate_response("chat", source, chat)
    events = response_events(source, target, response, usage=True)
    recorded = assembled(target, events)
    assert recorded["choices"][0]["message"]["content"] == "hi"
    assert recorded["choices"][0]["message"]["reasoning_content"] == "hm"
    assert recorded["choices"][0]["finish_reason"] == "tool_calls"
    assert recorded["usage"]["total_tokens"] == 3
    assert calls_of(recorded) == CALLS


def test_each_protocol_knows_an_answer_from_an_error():
    answers: dict[Protocol, Json] = {
        "chat": {"choices": [{}]},
        "completions": {"choices": [{}]},
        "responses": {"output": []},
        "messages": {"content": []},
        "embeddings": {"data": []},
    }
    for name in PROTOCOLS:
        assert get_protocol(name).is_answer(answers[name])
        assert not get_protocol(name).is_answer({"object": "error", "message": "no"})
        assert not get_protocol(name).is_answer({"choices": None, "base_resp": {}})
    cut = {"object": "response", "status": "failed", "output": [{"type": "message"}]}
    assert not get_protocol("responses").is_answer({**cut, "error": {"message": "no"}})
    assert not get_protocol("responses").is_answer({**cut, "error": None})


# -- requests --------------------------------------------------------------------------------------


def history(**said: Any) -> Json:
    """Return a chat request whose history has an answer of the assistant."""
    asked = {"role": "user", "content": "q"}
    return {"model": "m", "messages": [asked, {"role": "assistant", **said}, asked]}


@pytest.mark.parametrize("content", [None, "", "But", [{"type": "text", "text": "But"}]])
def test_a_refusal_stays_in_the_history(content: Any):
    request = history(content=content, refusal="I cannot.")
    texts = ["But", "I cannot."] if content else ["I cannot."]
    message = translate_request("chat", "messages", request)["messages"][1]
    assert message["content"] == [{"type": "text", "text": text} for text in texts]
    item = translate_request("chat", "responses", request)["input"][1]
    assert (item["type"], item["role"]) == ("message", "assistant")
    *said, refused = item["content"]
    assert said == [{"type": "output_text", "text": text} for text in texts[:-1]]
    assert refused == {"type": "refusal", "refusal": "I cannot."}
    for target in ("messages", "responses"):
        assert lost_in_request("chat", target, request) == []


@pytest.mark.parametrize(("target", "where"), [("messages", "messages"), ("responses", "input")])
@pytest.mark.parametrize("said", [{"content": None, "audio": {"id": "a"}}, {"content": []}])
def test_a_message_without_content_is_left_out_and_its_audio_is_named(
    target: Protocol, where: str, said: Json
):
    request = history(**said)
    made = translate_request("chat", target, request)[where]
    assert [(one["role"], one["content"]) for one in made] == [("user", "q")] * 2
    lost = ["messages.audio"] if "audio" in said else []
    assert lost_in_request("chat", target, request) == lost


def messages_request(*content: Json, role: str = "user") -> Json:
    told: Json = {"role": role, "content": [*content]}
    asked = {"role": "user", "content": "q"}
    return {"model": "m", "max_tokens": 9, "messages": [asked, told, asked]}


def test_what_ran_at_anthropic_is_left_out_of_the_history_and_named():
    used = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    said = {"type": "text", "text": "found"}
    request = messages_request(used, result, said, role="assistant")
    chat = translate_request("messages", "chat", request)
    assert [one["content"] for one in chat["messages"]] == ["q", "found", "q"]
    lost = lost_in_request("messages", "chat", request)
    assert lost == ["server_tool_use", "web_search_tool_result"]
    alone = translate_request("messages", "chat", messages_request(used, result, role="assistant"))
    assert [one["role"] for one in alone["messages"]] == ["user"]


TEXT_BLOCKS: dict[str, tuple[Json, str]] = {
    "search result": (
        {
            "type": "search_result",
            "title": "T",
            "source": "https://a",
            "content": [{"type": "text", "text": "body"}],
        },
        "T\nhttps://a\nbody",
    ),
    "document": (
        {
            "type": "document",
            "source": {"type": "content", "content": [{"type": "text", "text": "body"}]},
        },
        "body",
    ),
    "tool reference": ({"type": "tool_reference", "tool_name": "read"}, "read"),
}


@pytest.mark.parametrize("kind", TEXT_BLOCKS)
def test_blocks_that_are_text_become_text(kind: str):
    block, text = TEXT_BLOCKS[kind]
    call = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    request = {
        "messages": [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
    }
    assert translate_request("messages", "chat", request)["messages"][-1]["content"] == text


def test_log_probabilities_of_other_tokens_need_those_of_the_sampled_one():
    chat = translate_request("responses", "chat", {"input": "q", "top_logprobs": 3})
    assert (chat["top_logprobs"], chat["logprobs"]) == (3, True)


@pytest.mark.parametrize("asked", [True, False])
def test_log_probabilities_of_a_chat_are_asked_of_a_server_of_responses(asked: bool):
    request = {"messages": [{"role": "user", "content": "q"}], "logprobs": asked}
    made = translate_request("chat", "responses", request)
    assert made.get("include") == (["message.output_text.logprobs"] if asked else None)
    assert translate_request("responses", "chat", made).get("logprobs", False) is asked


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_tools_that_a_choice_does_not_allow_are_left_out(mode: str):
    tools = [{"type": "function", "name": name, "parameters": {}} for name in ("read", "write")]
    choice = {
        "type": "allowed_tools",
        "mode": mode,
        "tools": [{"type": "function", "name": "read"}],
    }
    request = {"input": "q", "tools": tools, "tool_choice": choice}
    chat = translate_request("responses", "chat", request)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["read"]
    assert chat["tool_choice"] == mode
    choice["tools"] = []
    chat = translate_request("responses", "chat", request)
    assert "tools" not in chat and "tool_choice" not in chat


def test_fields_of_a_request_may_be_null():
    item = {"type": None, "role": "user", "content": "q"}
    chat = translate_request("responses", "chat", {"input": [item], "text": {"format": None}})
    assert chat["messages"] == [{"role": "user", "content": "q"}]


def test_a_message_that_opens_at_the_end_closes_at_its_own_place():
    """A reasoning model that reaches its limit while it thinks says nothing."""
    events = [chunk({"reasoning_content": "hm"}), chunk({}, "length")]
    places: dict[str, list[Any]] = {"added": [], "done": []}
    for event in through("chat", "responses", events):
        prefix, _, step = event["type"].rpartition(".")
        if prefix == "response.output_item":
            places[step].append((event["output_index"], event["item"]["type"]))
    assert places["done"] == places["added"] == [(0, "reasoning"), (1, "message")]
