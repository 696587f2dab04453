"""Streams and answers as servers send them, where they differ from the protocol's description."""

from __future__ import annotations

from typing import Any

import pytest

from agl_core import genai
from agl_core.genai import (
    Protocol,
    get_protocol,
    lost_in_request,
    stream_translator,
    translate_request,
    translate_response,
)
from agl_core.genai.responses._assembly import ResponsesAssembler

from .server_streams import Json, assembled, calls_of, chunk, fed, piece, through

A, B = '{"path": "a.rs"}', '{"path": "b.rs"}'


TOOL_CALLS = {
    "index 0 of every call": [[piece(0, "a1", "read", A)], [piece(0, "a2", "read", B)]],
    "index null": [[piece(None, "a1", "read", A), piece(None, "a2", "read", B)]],
    "no index": [
        [piece(id="a1", name="read", text=A[:5])],
        [piece(text=A[5:])],
        [piece(id="a2", name="read", text=B)],
    ],
    "numbers from 1": [[piece(1, "a1", "read", A)], [piece(2, "a2", "read", B)]],
    "pieces in turns": [
        [piece(0, "a1", "read", A[:5]), piece(1, "a2", "read", B[:5])],
        [piece(0, text=A[5:]), piece(1, text=B[5:])],
    ],
    "another id in each piece": [
        [piece(0, "a1", "read", A[:5])],
        [piece(0, "a1x", text=A[5:])],
        [piece(1, "a2", "read", B)],
    ],
    "no ids, and index 0 of every call": [[piece(0, "", "read", A)], [piece(0, "", "read", B)]],
    "the name in each piece": [
        [piece(name="read", text=A[:5])],
        [piece(name="read", text=A[5:])],
        [piece(name="read", text=B)],
    ],
    "the name in each piece, with an index": [
        [piece(0, name="read", text=A[:5])],
        [piece(0, name="read", text=A[5:])],
        [piece(1, name="read", text=B)],
    ],
    "the name after the id": [
        [piece(0, "a1")],
        [piece(0, name="read", text=A)],
        [{"index": 1, "id": "a2", "function": None}],
        [piece(1, text=B[:5])],
        [piece(1, name="read", text=B[5:])],
    ],
    "arguments as an object": [
        [piece(0, "a1", "read", {"path": "a.rs"}), piece(1, "a2", "read", {"path": "b.rs"})]
    ],
}


@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
@pytest.mark.parametrize("kind", TOOL_CALLS)
def test_pieces_of_tool_calls_find_their_call(kind: str, finish: str):
    events = [chunk({"role": "assistant", "content": None})]
    events += [chunk({"tool_calls": pieces}) for pieces in TOOL_CALLS[kind]]
    events.append(chunk({}, finish))
    expected = [("read", {"path": "a.rs"}), ("read", {"path": "b.rs"})]
    for protocol in ("chat", "messages", "responses"):
        found = calls_of(assembled(protocol, through("chat", protocol, events)))
        assert [(name, genai.loads(text.encode())) for name, text in found] == expected
    message = through("chat", "messages", events)
    assert message[-2]["delta"]["stop_reason"] == "tool_use"


def test_azures_first_chunk_gives_no_id():
    first = {"id": "", "model": "", "choices": [], "prompt_filter_results": [{}]}
    events = [first, chunk({"role": "assistant", "content": "hi"}), chunk({}, "stop")]
    assert assembled("chat", events)["id"] == "c1"
    assert through("chat", "messages", events)[0]["message"]["id"] == "c1"
    assert through("chat", "responses", events)[0]["response"]["id"] == "c1"


def test_an_empty_id_is_no_id():
    attributes = genai.response_attributes({"id": "", "model": "", "choices": []})
    assert not {"gen_ai.response.id", "gen_ai.response.model"} & attributes.keys()


def test_a_list_may_follow_a_null():
    token = {"token": "No", "logprob": -0.1}
    events = [
        chunk({"role": "assistant"}, logprobs={"content": [], "refusal": None}),
        chunk({"refusal": "No"}, logprobs={"content": None, "refusal": [token]}),
        chunk({}, "stop"),
    ]
    choice = assembled("chat", events)["choices"][0]
    assert choice["message"]["refusal"] == "No"
    assert choice["logprobs"] == {"content": [], "refusal": [token]}


def test_content_may_be_a_list_of_parts():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    events = [
        chunk({"content": [thinking]}),
        chunk({"content": [{"type": "text", "text": "4"}]}),
        chunk({}, "stop"),
    ]
    message = assembled("chat", events)["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("4", "hm")
    for protocol in ("messages", "responses"):
        made = assembled(protocol, through("chat", protocol, events))["choices"][0]["message"]
        assert (made["content"], made["reasoning_content"]) == ("4", "hm")


def test_pieces_of_a_thinking_block_are_one_block():
    events = [
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": "a"}]}),
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": "b"}]}),
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "s1"}]}),
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": "c"}]}),
        chunk({"thinking_blocks": [{"type": "thinking", "signature": "s2"}]}),
        chunk({}, "stop"),
    ]
    blocks = assembled("chat", events)["choices"][0]["message"]["thinking_blocks"]
    assert [(one["thinking"], one["signature"]) for one in blocks] == [("ab", "s1"), ("c", "s2")]


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_a_forced_tool_that_ends_with_stop_is_tool_use(finish: str):
    call = {"id": "a1", "type": "function", "function": {"name": "read", "arguments": A}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    made = translate_response("chat", "messages", {"id": "c", "model": "m", "choices": [choice]})
    assert made["stop_reason"] == "tool_use"
    cut = {"id": "c", "choices": [{**choice, "finish_reason": "length"}]}
    assert translate_response("chat", "messages", cut)["stop_reason"] == "max_tokens"


# -- messages --------------------------------------------------------------------------------------


def message_events(block: Json, *pieces: str, reason: str = "tool_use") -> list[Json]:
    head = {"id": "msg_1", "role": "assistant", "model": "c", "content": [], "stop_reason": None}
    deltas = [{"type": "input_json_delta", "partial_json": text} for text in pieces]
    return [
        {"type": "message_start", "message": head},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": None},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize("pieces", [(), ("",)])
def test_the_whole_input_of_a_tool_may_be_in_the_first_event(pieces: tuple[str, ...]):
    block = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    events = message_events(block, *pieces)
    assert calls_of(assembled("messages", events)) == [("f", '{"a":1}')]
    assert calls_of(assembled("chat", through("messages", "chat", events))) == [("f", '{"a":1}')]
    made = through("messages", "responses", events)
    assert calls_of(assembled("responses", made)) == [("f", '{"a":1}')]


def test_truncated_arguments_stay_the_models_text():
    block = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    events = message_events(block, '{"a": [1', ", 2", reason="max_tokens")
    assert calls_of(assembled("messages", events)) == [("f", '{"a": [1, 2')]


@pytest.mark.parametrize(
    "summary", [{"content": "S", "encrypted_content": "E"}, {"content": "S"}, {}]
)
def test_a_streamed_compaction_is_as_a_whole_one(summary: Json):
    start = {"type": "compaction", "content": None}
    delta = {"content": None, "encrypted_content": None, **summary, "type": "compaction_delta"}
    events = message_events(start, reason="compaction")
    events.insert(2, {"type": "content_block_delta", "index": 0, "delta": delta})
    assert fed("messages", events).result()["content"] == [{**start, **summary}]


# -- responses -------------------------------------------------------------------------------------

HEAD: Json = {"id": "resp_1", "model": "m", "output": [], "status": "in_progress"}
CALL: Json = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "read"}
DONE: Json = {"type": "response.completed", "response": {**HEAD, "status": "completed"}}


def test_a_response_may_end_without_its_output():
    events = [
        {"type": "response.created", "response": HEAD},
        {"type": "response.output_item.done", "output_index": 0, "item": {**CALL, "arguments": A}},
        DONE,
    ]
    recorded = assembled("responses", events)
    assert calls_of(recorded) == [("read", A)]
    assert recorded["choices"][0]["finish_reason"] == "tool_calls"
    chat = assembled("chat", through("responses", "chat", events))
    assert calls_of(chat) == [("read", A)]
    assert chat["choices"][0]["finish_reason"] == "tool_calls"
    assert through("responses", "messages", events)[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_text_may_come_with_the_done_event_only():
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    where = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    events = [
        {"type": "response.created", "response": HEAD},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_text.done", **where, "text": "hello"},
        DONE,
    ]
    for found in (
        assembled("responses", events),
        assembled("chat", through("responses", "chat", events)),
        assembled("messages", through("responses", "messages", events)),
    ):
        assert found["choices"][0]["message"]["content"] == "hello"


def test_a_response_may_come_whole_at_its_end():
    part = {"type": "output_text", "text": "hello"}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}
    last = {**DONE["response"], "output": [item]}
    events = [{"type": "response.completed", "response": last}]
    chat = assembled("chat", through("responses", "chat", events))
    assert chat["choices"][0]["message"]["content"] == "hello"


# -- requests --------------------------------------------------------------------------------------


def test_a_prompt_that_is_missing_is_not_the_word_null():
    assert genai.input_messages({}) == []
    (message,) = genai.input_messages({"prompt": [1, 2]})
    assert message["parts"] == [{"type": "token_ids", "content": [1, 2]}]


@pytest.mark.parametrize(
    ("protocol", "request_"),
    [
        (
            "responses",
            {
                "instructions": "be a coder",
                "input": [{"role": "user", "content": "fix it"}],
                "tools": [{"type": "custom", "name": "apply_patch"}, {"type": "web_search"}],
            },
        ),
        (
            "messages",
            {
                "system": "be a coder",
                "messages": [{"role": "user", "content": "fix it"}],
                "tools": [{"type": "web_search_20250305", "name": "web_search"}],
            },
        ),
    ],
)
def test_a_request_is_recorded_whatever_tools_it_offers(protocol: Protocol, request_: Json):
    messages = genai.input_messages(get_protocol(protocol).recorded_request(request_))
    assert [(m["role"], m["parts"][0]["content"]) for m in messages] == [
        ("system", "be a coder"),
        ("user", "fix it"),
    ]


CODEX: Json = {
    "input": [
        {"type": "message", "role": "developer", "content": "You are a coding agent."},
        {"type": "message", "role": "developer", "content": "permissions"},
        {"type": "message", "role": "user", "content": "fix it"},
        {"type": "message", "role": "developer", "content": "hurry"},
    ],
    "tools": [
        {"type": "function", "name": "run", "parameters": {"type": "object"}},
        {"type": "custom", "name": "apply_patch", "description": "Edits files."},
        {
            "type": "namespace",
            "name": "agents",
            "tools": [
                {"type": "function", "name": "spawn", "parameters": {"type": "object"}},
                {"type": "function", "name": "run", "parameters": {"type": "object"}},
            ],
        },
        {"type": "web_search"},
    ],
}


def test_codex_tools_and_instructions_reach_chat():
    chat = translate_request("responses", "chat", CODEX)
    names = [tool["function"]["name"] for tool in chat["tools"]]
    assert names == ["run", "apply_patch", "spawn", "agents__run"]
    assert chat["tools"][1]["function"]["parameters"]["required"] == ["input"]
    assert [(one["role"], one["content"]) for one in chat["messages"]] == [
        ("system", "You are a coding agent.\n\npermissions"),
        ("user", "fix it\n\nhurry"),
    ]
    assert lost_in_request("responses", "chat", CODEX) == ["input.role", "tools.web_search"]


@pytest.mark.parametrize("streamed", [False, True])
def test_calls_of_codex_tools_come_back_in_their_form(streamed: bool):
    given = [("apply_patch", '{"input": "*** Begin"}'), ("spawn", "{}"), ("agents__run", A)]
    calls = [piece(i, f"c{i}", name, text) for i, (name, text) in enumerate(given)]
    if streamed:
        translator = stream_translator("chat", "responses", request=CODEX)
        events = [chunk({"tool_calls": calls}), chunk({}, "tool_calls")]
        made = [out for event in events for out in translator.feed(event)] + translator.close()
        kinds = [event["type"] for event in made]
        assert "response.custom_tool_call_input.done" in kinds
        output = made[-1]["response"]["output"]
    else:
        choice = {"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}
        response = {"id": "c", "choices": [choice]}
        output = translate_response("chat", "responses", response, CODEX)["output"]
    assert (output[0]["type"], output[0]["name"], output[0]["input"]) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin",
    )
    assert [(one["name"], one["namespace"]) for one in output[1:]] == [
        ("spawn", "agents"),
        ("run", "agents"),
    ]


def group(name: Any, *tools: Json) -> Json:
    return {"type": "namespace", "name": name, "tools": [*tools]}


def tool(name: Any, kind: str = "function") -> Json:
    return {"type": kind, "name": name}


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ([group("a", tool("x")), tool("x")], ["a__x", "x"]),
        ([tool("x"), tool("a__x"), group("a", tool("x"))], ["x", "a__x", "a__x2"]),
        ([group("a", tool("x")), group("b", tool("x"))], ["x", "b__x"]),
        ([group("a", tool("x", "custom"), tool("m", "mcp"))], ["x"]),
    ],
)
def test_tools_of_namespaces_have_names_of_their_own_in_chat(tools: list[Json], names: list[str]):
    request: Json = {"input": "hi", "tools": tools}
    chat = translate_request("responses", "chat", request)
    assert [one["function"]["name"] for one in chat["tools"]] == names
    calls = [piece(i, f"c{i}", name, "{}") for i, name in enumerate(names)]
    response = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    made = translate_response("chat", "responses", response, request)["output"]
    offered = [
        (g.get("name") if "tools" in g else None, t) for g in tools for t in g.get("tools", [g])
    ]
    wanted = [(space, one["name"]) for space, one in offered if one["type"] != "mcp"]
    # A custom tool's call has no field for its namespace.
    assert [one["name"] for one in made] == [name for _, name in wanted]
    again = translate_request("responses", "chat", {**request, "input": made})
    (message,) = again["messages"]
    if all(one["type"] == "function_call" for one in made):
        assert [call["function"]["name"] for call in message["tool_calls"]] == names
    lost = ["tools.mcp"] if any(one["type"] == "mcp" for _, one in offered) else []
    assert lost_in_request("responses", "chat", request) == lost


def test_a_choice_of_a_tool_in_a_namespace_names_the_function_of_chat():
    request: Json = {"input": "hi", "tools": [tool("x"), group("a", tool("x"), tool("y"))]}
    one = {**tool("x"), "namespace": "a"}
    chat = translate_request("responses", "chat", {**request, "tool_choice": one})
    assert chat["tool_choice"]["function"]["name"] == "a__x"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [one]}
    chat = translate_request("responses", "chat", {**request, "tool_choice": allowed})
    assert [each["function"]["name"] for each in chat["tools"]] == ["a__x"]


@pytest.mark.parametrize(
    "nameless",
    [
        tool(None),
        tool(["x"]),
        {"type": "function", "function": {"name": "f"}},
        group("a", tool("")),
        group(None, tool("x")),
    ],
)
def test_a_tool_without_a_name_is_refused(nameless: Json):
    with pytest.raises(genai.CodecError, match="a tool has no name"):
        translate_request("responses", "chat", {"input": "hi", "tools": [nameless]})


@pytest.mark.parametrize("late", ["skills", [{"type": "text", "text": "skills"}]])
def test_a_late_instruction_becomes_a_users_message(late: Any):
    request = {
        "system": "You are a coder.",
        "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": late}],
    }
    chat = translate_request("messages", "chat", request)
    assert [one["role"] for one in chat["messages"]] == ["system", "user"]
    assert chat["messages"][1]["content"] == "hi\n\nskills"
    assert lost_in_request("messages", "chat", request) == ["messages.role"]


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("late", ["skills", [{"type": "text", "text": "skills"}]])
def test_a_late_instruction_keeps_its_place_on_the_way_to_messages(role: str, late: Any):
    """In the system prompt the model would read it before the turns that it follows."""
    request: Json = {
        "messages": [
            {"role": "system", "content": "You are a coder."},
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "yes?"},
            {"role": role, "content": late},
        ]
    }
    made = translate_request("chat", "messages", request)
    assert [part["text"] for part in made["system"]] == ["You are a coder.", "Be brief."]
    assert [one["role"] for one in made["messages"]] == ["user", "assistant", "user"]
    assert made["messages"][-1]["content"] == late
    assert lost_in_request("chat", "messages", request) == ["messages.role"]
    del request["messages"][-1]
    assert lost_in_request("chat", "messages", request) == []


def test_a_late_instruction_follows_the_results_of_tools():
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    request = {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "system", "content": "skills"},
        ]
    }
    made = translate_request("chat", "messages", request)
    assert "system" not in made
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "1"}
    assert made["messages"][-1]["content"] == [result, {"type": "text", "text": "skills"}]


def test_neighbours_of_one_role_become_one_message():
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    call = {"type": "function_call", "call_id": "c1", "name": "run", "arguments": "{}"}
    items = [
        {"role": "user", "content": "context"},
        {"role": "user", "content": [{"type": "input_text", "text": "fix it"}, image]},
        {"type": "reasoning", "summary": [], "content": [{"text": "First "}]},
        {"type": "reasoning", "summary": [], "content": [{"text": "look."}]},
        {"role": "assistant", "content": "I look."},
        call,
        {"role": "assistant", "content": "And wait."},
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
    ]
    user, assistant, *results = translate_request("responses", "chat", {"input": items})["messages"]
    assert user["role"] == "user"
    assert [part.get("text") for part in user["content"]] == ["context", "fix it", None]
    assert assistant["reasoning_content"] == "First look."
    assert assistant["content"] == "I look.\n\nAnd wait."
    assert [one["id"] for one in assistant["tool_calls"]] == ["c1", "c2"]
    assert [(one["role"], one["content"]) for one in results] == [("tool", "1"), ("tool", "2")]


def test_tools_of_the_server_are_left_out_and_named():
    own = {"name": "read", "input_schema": {"type": "object"}}
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    request = {"messages": [], "tools": [own, hosted]}
    chat = translate_request("messages", "chat", request)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["read"]
    assert lost_in_request("messages", "chat", request) == ["tools.web_search_20250305"]


def test_marks_for_the_cache_reach_anthropic():
    mark = {"type": "ephemeral"}
    part = {"type": "text", "text": "long", "cache_control": mark}
    function = {"name": "read", "parameters": {"type": "object"}}
    request = {
        "messages": [{"role": "system", "content": [part]}, {"role": "user", "content": [part]}],
        "tools": [{"type": "function", "function": function, "cache_control": mark}],
    }
    made = translate_request("chat", "messages", request)
    assert made["system"][0]["cache_control"] == mark
    assert made["messages"][0]["content"][0]["cache_control"] == mark
    assert made["tools"][0]["cache_control"] == mark
    back = {"system": [part], "messages": []}
    assert lost_in_request("messages", "chat", back) == ["cache_control"]


def test_a_text_that_comes_only_at_its_end_begins_the_answer():
    done = {"type": "response.output_text.done", "output_index": 0, "text": "hi"}
    assert fed("responses", [done]).started
    other = {"type": "response.content_part.done", "output_index": 0}
    assert not fed("responses", [other]).started


def test_pieces_of_a_custom_tool_without_its_item_are_a_custom_call():
    delta = {"type": "response.custom_tool_call_input.delta", "output_index": 0, "delta": "ls"}
    output = fed("responses", [delta]).result()["output"]
    assert [(item["type"], item["input"]) for item in output] == [("custom_tool_call", "ls")]


def test_an_item_with_another_id_at_the_end_does_not_take_the_place_of_a_known_one():
    def item(name: str) -> Json:
        return {"type": "message", "id": name, "role": "assistant", "content": []}

    added = [
        {"type": "response.output_item.added", "output_index": i, "item": item(f"m{i}")}
        for i in range(2)
    ]
    assembler = fed("responses", added)
    assert isinstance(assembler, ResponsesAssembler)
    assert assembler.places_of([item("m1"), item("new")]) == [1, 0]
    assert assembler.places_of([item("m0"), item("new"), item("newer")]) == [0, 1, 4]
