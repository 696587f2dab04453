"""Adapters that make conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agl_adapters import is_model_call
from agl_core.adapter import Adapter
from agl_core.types import Span
from agl_testing.adapter.base import AdapterTests, MakeTrace, call_at, calls_at
from agl_testing.suite import requires

__all__ = ["MessageTests"]

ARGUMENTS = json.dumps({"a": 1})


def with_attributes(span: Span, **attributes: Any) -> Span:
    renamed = {key.replace("__", "."): value for key, value in attributes.items()}
    return span.model_copy(update={"attributes": {**span.attributes, **renamed}})


class MessageTests(AdapterTests):
    """One conversation per call, with everything that was said."""

    @requires("messages")
    def test_each_call_becomes_a_conversation(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        conversations = adapter.adapt(make_trace(2))
        assert [conversation["messages"] for conversation in conversations] == [
            [
                {"role": "user", "content": f"question {turn}"},
                {"role": "assistant", "content": f"answer {turn}"},
            ]
            for turn in range(2)
        ]

    @requires("messages")
    def test_every_message_is_kept_in_order(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        spans = make_trace(1)
        at = call_at(spans)
        roles = ["system", "user", "assistant", "user"]
        said = {f"gen_ai__prompt__{i}__role": role for i, role in enumerate(roles)}
        said |= {f"gen_ai__prompt__{i}__content": f"text {i}" for i in range(4)}
        spans[at] = with_attributes(spans[at], **said)
        (conversation,) = adapter.adapt(spans)
        found = [(message["role"], message["content"]) for message in conversation["messages"]]
        asked = [(role, f"text {i}") for i, role in enumerate(roles)]
        assert found == [*asked, ("assistant", "answer 0")]
        assert conversation["tools"] is None

    @requires("messages")
    def test_a_message_without_text_has_the_key(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        spans = make_trace(1)
        at = call_at(spans)
        called = "gen_ai__prompt__1__tool_calls__0"
        said = {f"{called}__id": "call_0", f"{called}__name": "tool_0"}
        said |= {f"{called}__arguments": ARGUMENTS, "gen_ai__prompt__1__role": "assistant"}
        said |= {"gen_ai__prompt__2__role": "tool", "gen_ai__prompt__2__tool_call_id": "call_0"}
        spans[at] = with_attributes(spans[at], **said)
        (conversation,) = adapter.adapt(spans)
        _, assistant, tool, _ = conversation["messages"]
        # OpenAI's format: null beside tool calls, text in every other message.
        assert (assistant["content"], tool["content"]) == (None, "")
        assert len(assistant["tool_calls"]) == 1

    @requires("messages")
    def test_a_tools_result_names_its_call(self, adapter: Adapter[Any, Any], make_trace: MakeTrace):
        spans = make_trace(1)
        at = call_at(spans)
        said: dict[str, Any] = {"gen_ai__prompt__1__role": "assistant"}
        for i, name in enumerate(("add", "look up")):
            called = f"gen_ai__prompt__1__tool_calls__{i}"
            said |= {f"{called}__id": f"call_{i}", f"{called}__name": name}
            said |= {f"{called}__arguments": ARGUMENTS}
            result = f"gen_ai__prompt__{i + 2}"
            said |= {f"{result}__role": "tool", f"{result}__tool_call_id": f"call_{i}"}
            said |= {f"{result}__content": f"result {i}"}
        spans[at] = with_attributes(spans[at], **said)
        (conversation,) = adapter.adapt(spans)
        _, assistant, *results, _ = conversation["messages"]
        calls = [(call["id"], call["function"]["name"]) for call in assistant["tool_calls"]]
        assert calls == [("call_0", "add"), ("call_1", "look up")]
        found = [(r["role"], r["tool_call_id"], r["content"]) for r in results]
        assert found == [("tool", f"call_{i}", f"result {i}") for i in range(2)]

    @requires("messages")
    def test_tool_calls_of_the_answer_are_kept(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        spans = make_trace(1)
        at = call_at(spans)
        prefix = "gen_ai__completion__0__tool_calls"
        calls = {f"{prefix}__{i}__id": f"call_{i}" for i in range(2)}
        calls |= {f"{prefix}__{i}__name": f"tool_{i}" for i in range(2)}
        calls |= {f"{prefix}__{i}__arguments": ARGUMENTS for i in range(2)}
        spans[at] = with_attributes(spans[at], **calls)
        (conversation,) = adapter.adapt(spans)
        answer = conversation["messages"][-1]
        assert [
            (call["id"], call["type"], call["function"]["name"], call["function"]["arguments"])
            for call in answer["tool_calls"]
        ] == [(f"call_{i}", "function", f"tool_{i}", ARGUMENTS) for i in range(2)]

    @requires("messages")
    def test_calls_that_are_left_out_are_counted(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        spans = make_trace(4)
        calls = calls_at(spans)
        silent = spans[calls[1]]
        kept = {
            key: value
            for key, value in silent.attributes.items()
            if not key.startswith(("gen_ai.prompt", "gen_ai.completion"))
        }
        kept["gen_ai.operation.name"] = "chat"
        spans[calls[1]] = silent.model_copy(update={"attributes": kept})
        ids = {"span_id": spans[calls[2]].span_id, "sequence_id": spans[calls[2]].sequence_id}
        spans[calls[2]] = spans[calls[0]].model_copy(update=ids)
        conversations, report = adapter.adapt_with_report(spans)
        texts = [conversation["messages"][-1]["content"] for conversation in conversations]
        assert texts == ["answer 0", "answer 3"]
        assert report.count("call") == 2
        assert len(report.left_out) == 2

    @requires("messages")
    def test_an_empty_or_reused_response_id_hides_no_call(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        for reused in ("", "chatcmpl-999"):
            spans = [
                with_attributes(span, gen_ai__response__id=reused)
                if is_model_call(span.attributes)
                else span
                for span in make_trace(3)
            ]
            conversations, report = adapter.adapt_with_report(spans)
            texts = [conversation["messages"][-1]["content"] for conversation in conversations]
            assert texts == ["answer 0", "answer 1", "answer 2"]
            assert report.count("call") == 0

    @requires("messages")
    def test_spans_of_tools_are_the_tool_calls_of_their_call(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        spans = make_trace(1)
        call = spans[call_at(spans)]
        for index in range(2):
            attributes: dict[str, Any] = {
                "tool.name": f"tool_{index}",
                "tool.call.id": f"call_{index}",
                "tool.call.type": "function",
                "tool.parameters": ARGUMENTS,
            }
            fields = {"span_id": f"{90 + index:016x}", "parent_id": call.span_id, "name": "tool"}
            spans.append(call.model_copy(update={**fields, "attributes": attributes}))
        without_id = {"tool.name": "nobody's", "tool.parameters": ARGUMENTS}
        fields = {"span_id": "0d" * 8, "parent_id": call.span_id, "name": "tool"}
        spans.append(call.model_copy(update={**fields, "attributes": without_id}))
        (conversation,) = adapter.adapt(spans)
        assert [
            (made["id"], made["type"], made["function"]["name"], made["function"]["arguments"])
            for made in conversation["messages"][-1]["tool_calls"]
        ] == [(f"call_{i}", "function", f"tool_{i}", ARGUMENTS) for i in range(2)]

    @requires("messages")
    @pytest.mark.parametrize("between", [False, True])
    def test_a_call_around_a_call_is_counted_once(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace, between: bool
    ):
        spans = make_trace(1)
        at = call_at(spans)
        inner = spans[at]
        kept = {k: v for k, v in inner.attributes.items() if k != "gen_ai.response.id"}
        outer = inner.model_copy(update={"span_id": "0f" * 8, "attributes": kept})
        parent = outer.span_id
        if between:
            step = {"span_id": "0e" * 8, "parent_id": parent, "name": "step", "attributes": {}}
            spans.append(inner.model_copy(update=step))
            parent = "0e" * 8
        spans[at] = inner.model_copy(update={"parent_id": parent})
        conversations, report = adapter.adapt_with_report([*spans, outer])
        assert len(conversations) == 1
        assert report.count("call") == 1
