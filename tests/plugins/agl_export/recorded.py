"""Builds spans in the form that a proxy records."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from agl_core.genai import input_messages, output_messages
from agl_core.types import Span
from agl_export import Sample

_numbers = itertools.count(1)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
        },
    }
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(arguments: Any, id: str = "call-1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": "add", "arguments": text}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }


def result(text: str, id: str = "call-1") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": id}


def call(
    messages: Sequence[dict[str, Any]],
    answer: dict[str, Any],
    *,
    prompt_ids: Sequence[int] = (),
    response_ids: Sequence[int] = (),
    logprobs: Sequence[float] | None = None,
    tools: bool = False,
    **more: Any,
) -> Span:
    """A model call with the captured fields."""
    number = next(_numbers)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.id": f"response-{number}",
        "gen_ai.response.model": "tiny",
        "gen_ai.input.messages": json.dumps(input_messages({"messages": list(messages)})),
        "gen_ai.output.messages": json.dumps(output_messages([{"message": answer}])),
    }
    if prompt_ids:
        attributes |= {
            "prompt_token_ids": list(prompt_ids),
            "response_token_ids": list(response_ids),
        }
    if logprobs is not None:
        attributes["logprobs.content"] = json.dumps(
            [{"token": "t", "logprob": value} for value in logprobs]
        )
    if tools:
        attributes["gen_ai.tool.definitions"] = json.dumps(TOOLS)
    return span(number, "chat", attributes | more)


def reward(value: Any) -> Span:
    name = "agentlightning.reward.0"
    attributes = {f"{name}.name": "primary", f"{name}.value": value}
    return span(next(_numbers), "agentlightning.annotation", attributes)


def agent(name: str) -> Span:
    """The span of an agent's run."""
    return span(next(_numbers), "run", {"agent.name": name})


def span(number: int, name: str, attributes: dict[str, Any], parent: Span | None = None) -> Span:
    return Span.from_attributes(
        name=name,
        attributes=attributes,
        rollout_id="ro",
        attempt_id="at",
        sequence_id=number,
        trace_id="1" * 32,
        span_id=f"{number:016x}",
        parent_id=parent.span_id if parent else None,
        start_time=1_700_000_000.0 + number,
        end_time=1_700_000_000.5 + number,
    )


def sample(value: float | None, *spans: Span, rollout_id: str = "", task: str = "task") -> Sample:
    number = next(_numbers)
    return Sample(rollout_id or f"ro-{number}", f"at-{number}", task, value, spans)


def answered(value: float | None, text: str, question: str = "2+2?", **more: Any) -> Sample:
    """A rollout with one call."""
    return sample(value, call([user(question)], said(text), **more))
