"""What Weave's spans say of agents and model calls, as the core's adapters read them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agl_adapters import TraceToMessages, TraceTree
from agl_core.types import Span
from agl_tracer_weave.attributes import input_attributes, output_attributes


@pytest.mark.parametrize(
    ("name", "attributes", "agent"),
    [
        ("x", {"agentlightning.operation.input.name": "n", "type": "agent"}, "n"),
        ("x", {"agentlightning.operation.input.name": "n"}, None),
        ("langchain.Chain.invoke", {"lc_name": "LangGraph"}, "LangGraph"),
        ("langchain.Tool.invoke", {"lc_name": "LangGraph"}, None),
    ],
)
def test_the_name_of_an_agent(
    name: str, attributes: dict[str, Any], agent: str | None, agl_registry: Any
) -> None:
    agl_registry.add("dialect.weave", "agl_tracer_weave.hooks")
    span = Span.from_attributes(attributes=attributes, name=name)
    assert TraceTree.from_spans([span]).agent_name() == agent


def test_a_call_is_recorded_as_it_was_sent() -> None:
    document = {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}
    search = {"type": "web_search_20250305", "name": "web_search"}
    asked = {
        "model": "m",
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Read this"}, document]},
            {"role": "system", "content": "Answer in French."},
            {"role": "user", "content": "Go"},
        ],
        "tools": [search],
    }
    used = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    text = {"type": "text", "text": "Oui"}
    answer = {"id": "1", "model": "m", "content": [used, text], "stop_reason": "end_turn"}
    op = "anthropic.Messages.create"
    attributes = input_attributes(op, asked) | output_attributes(op, answer)
    adapter = TraceToMessages()
    (found,) = adapter.adapt([Span.from_attributes(attributes=attributes, name=op)])
    assert [(one["role"], one["content"]) for one in found["messages"]] == [
        ("system", "Be brief."),
        ("user", [{"type": "text", "text": "Read this"}]),
        ("system", "Answer in French."),
        ("user", "Go"),
        ("assistant", [text]),
    ]
    assert json.loads(attributes["agentlightning.operation.input.tools"]) == [search]
    place = "agentlightning.operation.input.messages.1.content.1"
    assert attributes[f"{place}.source.url"] == "https://x/y.pdf"
    assert attributes[f"{place}.type"] == "document"
    assert adapter.report.left_out == {
        ("part", "content that chat does not have, of type 'document'"): 1,
        ("part", "content that chat does not have, of type 'server_tool_use'"): 1,
    }
