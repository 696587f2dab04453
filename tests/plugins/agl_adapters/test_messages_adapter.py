"""Tests of TraceToMessages: it converts every dialect to OpenAI's chat format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agl_adapters import TraceToMessages
from agl_core.adapter import Reason
from agl_core.errors import InvalidArgumentError
from agl_core.otel._attributes import flatten_attributes
from agl_core.types import Span

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Book a room",
        "parameters": {"type": "object", "properties": {"room": {"type": "string"}}},
    },
}
SCHEMA = json.dumps(TOOL["function"]["parameters"])


def call(id: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "book", "arguments": arguments}}


CONVERSATION = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "book A"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "t1",
                "type": "function",
                "function": {"name": "book", "arguments": '{"room": "A"}'},
            }
        ],
    },
    {"role": "tool", "content": "ok", "tool_call_id": "t1"},
    {"role": "assistant", "content": "done"},
]


def span(
    attributes: dict[str, Any], id: str = "s", parent: str | None = None, name: str = "call"
) -> Span:
    return Span.from_attributes(attributes=attributes, span_id=id, parent_id=parent, name=name)


LEGACY = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "be brief",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "book A",
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.content": "",  # what some tracers write for no text
    "gen_ai.prompt.2.tool_calls.0.id": "t1",
    "gen_ai.prompt.2.tool_calls.0.name": "book",
    "gen_ai.prompt.2.tool_calls.0.arguments": '{"room": "A"}',
    "gen_ai.prompt.3.role": "tool",
    "gen_ai.prompt.3.content": "ok",
    "gen_ai.prompt.3.tool_call_id": "t1",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "done",
    "gen_ai.completion.0.finish_reason": "stop",
    "gen_ai.request.functions.0.name": "book",
    "gen_ai.request.functions.0.description": "Book a room",
    "gen_ai.request.functions.0.parameters": SCHEMA,
}
GEN_AI = {
    "gen_ai.operation.name": "chat",
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "be brief"}]),
    "gen_ai.input.messages": json.dumps(
        [
            {"role": "user", "parts": [{"type": "text", "content": "book A"}]},
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": "hm"},
                    {"type": "tool_call", "id": "t1", "name": "book", "arguments": {"room": "A"}},
                ],
            },
            {
                "role": "tool",
                "parts": [{"type": "tool_call_response", "id": "t1", "response": "ok"}],
            },
        ]
    ),
    "gen_ai.output.messages": json.dumps(
        [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": "done"}],
                "finish_reason": "stop",
            }
        ]
    ),
    "gen_ai.tool.definitions": json.dumps([{"type": "function", **TOOL["function"]}]),
}
OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "m",
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "be brief",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": "book A",
    "llm.input_messages.2.message.role": "assistant",
    "llm.input_messages.2.message.tool_calls.0.tool_call.id": "t1",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.name": "book",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments": '{"room": "A"}',
    "llm.input_messages.3.message.role": "tool",
    "llm.input_messages.3.message.content": "ok",
    "llm.input_messages.3.message.tool_call_id": "t1",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "done",
    "llm.tools.0.tool.json_schema": json.dumps(TOOL),
}
OPERATION = flatten_attributes(
    {
        "agentlightning.operation": {
            "input": {"messages": CONVERSATION[:-1], "tools": [TOOL], "model": "m"},
            "output": {"choices": [{"message": CONVERSATION[-1], "finish_reason": "stop"}]},
        }
    }
)


@pytest.mark.parametrize(
    "attributes",
    [LEGACY, GEN_AI, OPENINFERENCE, OPERATION],
    ids=["legacy", "gen_ai", "openinference", "operation"],
)
def test_every_dialect_gives_the_same_conversation(attributes: dict[str, Any]) -> None:
    kept = {key: value for key, value in attributes.items() if value is not None}
    adapter = TraceToMessages()
    (conversation,) = adapter.adapt([span(kept)])
    assert conversation["messages"] == CONVERSATION
    assert conversation["tools"] == [TOOL]
    assert adapter.report.as_dict() == {
        "spans": 1,
        "produced": {"conversations": 1},
        "left_out": {},
        "repaired": {},
    }


def test_the_openai_package_accepts_the_result() -> None:
    from openai.types.chat import ChatCompletionMessageParam
    from pydantic import TypeAdapter

    accepts = TypeAdapter(list[ChatCompletionMessageParam])
    for attributes in (LEGACY, GEN_AI, OPENINFERENCE):
        (conversation,) = TraceToMessages().adapt([span(attributes)])
        assert accepts.validate_python(conversation["messages"])


def test_tool_calls_come_from_child_spans() -> None:
    tools = {
        "tool.call.id": "t9",
        "tool.call.type": "function",
        "tool.name": "book",
        "tool.parameters": '{"room": "B"}',
    }
    spans = [
        span(
            {
                "gen_ai.prompt.0.role": "user",
                "gen_ai.prompt.0.content": "book B",
                "gen_ai.completion.0.role": "assistant",
            },
            "llm",
        ),
        span(tools, "child", "llm"),
        span({**tools, "tool.call.id": "grandchild"}, "deep", "child"),
        span({"tool.name": "no call id"}, "other", "llm"),
    ]
    (conversation,) = TraceToMessages().adapt(spans)
    assert conversation["messages"][1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "t9",
                "type": "function",
                "function": {"name": "book", "arguments": '{"room": "B"}'},
            }
        ],
    }
    assert conversation["tools"] is None


def test_a_prompt_without_content_gets_an_empty_one() -> None:
    (conversation,) = TraceToMessages().adapt([span({"gen_ai.prompt.0.role": "user"})])
    assert conversation["messages"] == [{"role": "user", "content": ""}]


def test_images_survive_in_every_dialect() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://img"}}
    parts = [
        {"type": "text", "content": "look"},
        {"type": "uri", "modality": "image", "uri": "http://img"},
        {"type": "blob", "mime_type": "image/png", "content": "QUJD"},
    ]
    current = {"gen_ai.input.messages": json.dumps([{"role": "user", "parts": parts}])}
    prefix = "llm.input_messages.0.message"
    inference = {
        f"{prefix}.role": "user",
        f"{prefix}.contents.0.message_content.type": "image",
        f"{prefix}.contents.0.message_content.image.image.url": "http://img",
    }
    first, second = TraceToMessages().adapt([span(current), span(inference, "t")])
    blob = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    assert first["messages"][0]["content"] == [{"type": "text", "text": "look"}, image, blob]
    assert second["messages"][0]["content"] == [image]


def test_calls_without_messages_and_completions_of_others_are_counted() -> None:
    adapter = TraceToMessages()
    spans = [
        span({"gen_ai.request.model": "m"}, "a"),
        span({"gen_ai.response.id": "r"}, "b"),
        span({"gen_ai.response.id": "r", "gen_ai.operation.name": "invoke_agent"}, "c"),
        span({"other": 1}, "d"),
        span({"gen_ai.prompt.0.role": "user", "gen_ai.completion.0.content": "?"}, "e"),
    ]
    assert [c["messages"] for c in adapter.adapt(spans)] == [[{"role": "user", "content": ""}]]
    assert adapter.report.left_out == {
        ("call", Reason.NO_MESSAGES): 2,
        ("message", Reason.NOT_ASSISTANT): 1,
    }
    assert adapter.adapt([]) == []


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"gen_ai.prompt.x.role": "user"}, r"gen_ai\.prompt\.\* must form a list"),
        ({"gen_ai.completion.1.role": "user"}, r"gen_ai\.completion\.\* must form a list"),
        ({"gen_ai.request.0": "m"}, r"gen_ai\.request\.\* must form a mapping"),
        ({"gen_ai.prompt.0.role": "wizard"}, "message 0 is not a chat message"),
        ({"gen_ai.prompt.0.role": "tool", "gen_ai.prompt.0.content": "x"}, "tool_call_id"),
        ({"gen_ai.input.messages": '{"role": "user"}'}, "must form a list"),
        ({"gen_ai.input.messages": '["hello"]'}, "message 0 is not a chat message"),
        (
            {"gen_ai.prompt.0.role": "assistant", "gen_ai.prompt.0.tool_calls.0.name": "f"},
            "tool_calls.0.id",
        ),
        (
            {"gen_ai.prompt.0.role": "user", "gen_ai.tool.definitions": '["f"]'},
            "tool definition must be a mapping",
        ),
    ],
)
def test_malformed_messages_raise_an_error_with_the_span_and_position(
    attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        TraceToMessages().adapt([span(attributes)])


def test_a_tool_in_anthropics_form_is_the_same_tool() -> None:
    schema = {"name": "book", "description": "Book a room"}
    schema["input_schema"] = TOOL["function"]["parameters"]
    told = {**OPENINFERENCE, "llm.tools.0.tool.json_schema": json.dumps(schema)}
    (conversation,) = TraceToMessages().adapt([span(told)])
    assert conversation["tools"] == [TOOL]


def test_tools_of_the_provider_are_passed_on() -> None:
    web = {"type": "web_search", "context": "low"}
    attributes = {"gen_ai.prompt.0.role": "user", "gen_ai.tool.definitions": json.dumps([web])}
    (conversation,) = TraceToMessages().adapt([span(attributes)])
    assert conversation["tools"] == [web]


def test_a_call_recorded_twice_counts_once() -> None:
    def told(id: str, parent: str | None, response: str | None) -> Span:
        more = {} if response is None else {"gen_ai.response.id": response}
        return span({**LEGACY, **more}, id, parent)

    between = span({"agent.name": "a"}, "between", "framework")
    adapter = TraceToMessages()

    def counted(*spans: Span) -> tuple[int, dict[tuple[str, str], int]]:
        return len(adapter.adapt(list(spans))), dict(adapter.report.left_out)

    nested = {("call", Reason.NESTED_CALL): 1}
    framework, client = told("framework", None, None), told("client", "between", "r-1")
    assert counted(framework, between, client) == (1, nested)
    assert counted(client, between, framework) == (1, nested)
    inner = told("client", "between", None)
    assert counted(told("framework", None, "r-1"), between, inner) == (1, nested)
    twin = told("proxy", None, "r-1")
    assert counted(client, twin) == (1, {("call", Reason.DUPLICATE_RESPONSE): 1})
    assert counted(framework, between, inner) == (1, nested)
    both = {**nested, ("call", Reason.DUPLICATE_RESPONSE): 1}
    assert counted(twin, framework, between, client) == (1, both)
    # LangChain's span has an id of its own, and the same answer.
    own_id = told("framework", None, "r-0")
    assert counted(own_id, between, client) == (1, nested)
    own_id.attributes["gen_ai.completion.0.content"] = "another answer"
    assert counted(own_id, between, client) == (2, {})


@pytest.mark.parametrize("skew", [0.0, 2.0, -2.0])
@pytest.mark.parametrize("nested", [True, False])
def test_the_clock_of_a_proxy_does_not_double_a_conversation(skew: float, nested: bool) -> None:
    def told(id: str, parent: str | None, start: float) -> Span:
        attributes = {**LEGACY, "gen_ai.response.id": "r-1"}
        made = span(attributes, id, parent)
        return made.model_copy(update={"start_time": start, "end_time": start + 0.5})

    client = told("client", None, 10)
    between = span({"http.method": "POST"}, "http", "client")
    proxy = told("proxy", "http" if nested else None, 10 + skew)
    deeper = told("backend", "proxy", 10 + 2 * skew)
    # Without a link between them, a server that gives an id again looks the same.
    expected = 1 if nested or not skew else 2
    for spans in ([client, between, proxy], [proxy, between, client]):
        assert len(TraceToMessages().adapt(spans)) == expected
        assert len(TraceToMessages().adapt([*spans, deeper])) == expected
        assert len(TraceToMessages().adapt([deeper, *spans])) == expected


@pytest.mark.parametrize("content", ["Let me check.", "", None])
def test_text_beside_tool_calls_stays_in_the_history(content: str | None) -> None:
    said = {"role": "assistant", "content": content, "tool_calls": CONVERSATION[2]["tool_calls"]}
    given = {"messages": [CONVERSATION[1], said, CONVERSATION[3]], "model": "m"}
    output = {"choices": [{"message": CONVERSATION[-1], "finish_reason": "stop"}]}
    told = flatten_attributes({"agentlightning.operation": {"input": given, "output": output}})
    kept = {key: value for key, value in told.items() if value is not None}
    (conversation,) = TraceToMessages().adapt([span(kept)])
    assert conversation["messages"][1] == {**said, "content": content or None}


def parts(role: str, *found: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(found)}


def word(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def chat_span(asked: Sequence[Any], answered: Sequence[Any], id: str = "1") -> Span:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps(answered),
    }
    return span(attributes, id)


def test_results_of_tools_and_texts_keep_the_order_of_the_parts() -> None:
    called = {"type": "tool_call", "id": "c0", "name": "get", "arguments": {"city": "Rome"}}
    result = {"type": "tool_call_response", "id": "c0", "response": "rainy"}
    asked = [
        parts("user", word("look")),
        parts("assistant", called),
        parts("user", result, word("and Paris?")),
    ]
    (found,) = TraceToMessages().adapt([chat_span(asked, [parts("assistant", word("Sunny."))])])
    said = [(one["role"], one["content"]) for one in found["messages"]]
    assert said == [
        ("user", "look"),
        ("assistant", None),
        ("tool", "rainy"),
        ("user", "and Paris?"),
        ("assistant", "Sunny."),
    ]
    assert said[-1] == ("assistant", "Sunny.")


def test_content_without_an_equivalent_is_named_and_left_out() -> None:
    document = {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}
    asked = [parts("user", word("sum it up"), document)]
    adapter = TraceToMessages()
    (found,) = adapter.adapt([chat_span(asked, [parts("assistant", word("Short."))])])
    assert [one["content"] for one in found["messages"]] == ["sum it up", "Short."]
    assert adapter.report.left_out == {
        ("part", "content that chat does not have, of type 'document'"): 1
    }


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f-1"}},
        {"type": "video_url", "video_url": {"url": "https://x/y.mp4"}},
    ],
)
def test_sounds_files_and_videos_are_kept(part: dict[str, Any]) -> None:
    adapter = TraceToMessages()
    asked = [parts("user", word("what is it"), part)]
    (found,) = adapter.adapt([chat_span(asked, [parts("assistant", word("A bell."))])])
    text = {"type": "text", "text": "what is it"}
    assert found["messages"][0] == {"role": "user", "content": [text, part]}
    assert adapter.report.left_out == {}


def test_a_part_of_such_a_type_without_its_content_is_left_out() -> None:
    adapter = TraceToMessages()
    asked = [parts("user", word("q"), {"type": "file", "file_id": "f-1"})]
    (found,) = adapter.adapt([chat_span(asked, [parts("assistant", word("a"))])])
    assert found["messages"][0]["content"] == "q"
    assert adapter.report.count("part") == 1


def test_each_choice_is_a_conversation_unless_the_history_shows_which_was_used() -> None:
    asked = [parts("user", word("q"))]
    answers = [parts("assistant", word(text)) for text in ("a", "b", "c")]
    adapter = TraceToMessages()
    alone = adapter.adapt([chat_span(asked, answers)])
    assert [[m["content"] for m in one["messages"]] for one in alone] == [
        ["q", "a"],
        ["q", "b"],
        ["q", "c"],
    ]
    following = [*asked, answers[1], parts("user", word("more"))]
    later = chat_span(following, [parts("assistant", word("d"))], "2")
    found = adapter.adapt([chat_span(asked, answers), later])
    assert [[m["content"] for m in one["messages"]] for one in found] == [
        ["q", "b"],
        ["q", "b", "more", "d"],
    ]
    # Calls follow each other in time, in whatever order their spans come.
    early, late = chat_span(asked, answers), later
    for number, one in enumerate((early, late), 1):
        one.sequence_id = number
    assert adapter.adapt([late, early]) == [found[1], found[0]]
    assert adapter.report.left_out == {
        ("choice", "the agent went on with another choice of the call"): 2
    }
