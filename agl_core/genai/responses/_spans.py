"""Calls of OpenAI's Responses in the shape of chat, for records."""

from __future__ import annotations

from typing import Any, Final

from agl_core.genai._recorded import (
    blocks_of,
    chat_messages,
    recorded_completion,
    recorded_tools,
    turns_of,
)
from agl_core.genai._wire import Json
from agl_core.genai.responses._response import recorded_finish, usage_from_responses

__all__ = ["recorded_request", "recorded_response"]

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
    usage = usage_from_responses(response.get("usage") or None, zeros=True) or {}
    return recorded_completion(response, turns, {"finish_reason": recorded_finish(response)}, usage)
