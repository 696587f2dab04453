"""Calls of Anthropic's Messages in the shape of chat, for records."""

from __future__ import annotations

from typing import Final

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

__all__ = ["recorded_request", "recorded_response"]

_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


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
    reason = response.get("stop_reason")
    finish = None if reason is None else _FINISH.get(reason, reason)
    turns = [("assistant", blocks_of(response.get("content")))]
    return recorded_completion(response, turns, finish, _usage(object_at(response, "usage")))


def _usage(usage: Json) -> Json:
    """Return usage as in chat, where the prompt's tokens include cached ones."""
    if not usage:
        return {}
    cached = usage.get("cache_read_input_tokens")
    written = usage.get("cache_creation_input_tokens") or 0
    prompt: int = (usage.get("input_tokens") or 0) + (cached or 0) + written
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.get("output_tokens"),
        "total_tokens": prompt + (usage.get("output_tokens") or 0),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
