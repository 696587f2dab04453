"""Calls of Anthropic's Messages in the shape of chat, for records."""

from __future__ import annotations

from agl_core.genai._parts import object_at
from agl_core.genai._recorded import (
    blocks_of,
    chat_messages,
    list_at,
    recorded_completion,
    recorded_tools,
    turns_of,
)
from agl_core.genai._wire import Json
from agl_core.genai.messages._response import recorded_end, usage_from_messages

__all__ = ["recorded_request", "recorded_response"]


def recorded_request(request: Json) -> Json:
    """Return a request in the shape of chat; other parameters keep their names."""
    turns = turns_of(list_at(request, "messages"))
    if request.get("system"):
        turns.insert(0, ("system", blocks_of(request["system"])))
    rest = {key: value for key, value in request.items() if key not in ("messages", "system")}
    if rest.get("tools"):
        rest["tools"] = recorded_tools(rest["tools"])
    return {**rest, "messages": chat_messages(turns)}


def recorded_response(response: Json) -> Json:
    """Return a message in the shape of a chat completion."""
    turns = [("assistant", blocks_of(response.get("content")))]
    usage = object_at(response, "usage")
    counted = usage_from_messages(usage) if usage else {}
    return recorded_completion(response, turns, recorded_end(response), counted)
