"""Calls of OpenAI's Responses in the shape of chat, for records."""

from __future__ import annotations

from typing import Any, Final

from agl_core.genai._parts import object_at
from agl_core.genai._recorded import (
    CALLS,
    blocks_of,
    chat_messages,
    list_at,
    recorded_completion,
    recorded_tools,
    turns_of,
)
from agl_core.genai._wire import Json

__all__ = ["recorded_request", "recorded_response"]

_FINISH: Final = {"max_output_tokens": "length"}
_INPUT: Final = ("input", "instructions")


def recorded_request(request: Json) -> Json:
    """Return a request in the shape of chat; other parameters keep their names."""
    given: Any = request.get("input")
    turns = turns_of([{"role": "user", "content": given}] if isinstance(given, str) else given)
    if request.get("instructions"):
        turns.insert(0, ("system", blocks_of(request["instructions"])))
    rest = {key: value for key, value in request.items() if key not in _INPUT}
    if rest.get("tools"):
        rest["tools"] = recorded_tools(rest["tools"])
    return {**rest, "messages": chat_messages(turns)}


def recorded_response(response: Json) -> Json:
    """Return a response in the shape of a chat completion."""
    turns = turns_of(response.get("output"))
    return recorded_completion(
        response, turns, _finish_of(response), _usage(object_at(response, "usage"))
    )


def _finish_of(response: Json) -> str | None:
    if response.get("status") == "completed":
        called = any(item.get("type") in CALLS for item in list_at(response, "output"))
        return "tool_calls" if called else "stop"
    reason = object_at(response, "incomplete_details").get("reason")
    return None if reason is None else _FINISH.get(reason, reason)


def _usage(usage: Json) -> Json:
    if not usage:
        return {}
    thought = object_at(usage, "output_tokens_details").get("reasoning_tokens")
    return {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "total_tokens": usage.get("total_tokens"),
        "prompt_tokens_details": {
            "cached_tokens": object_at(usage, "input_tokens_details").get("cached_tokens")
        },
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
