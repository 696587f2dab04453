"""The order of roles that chat templates accept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from agl_core.genai._parts import as_list, as_part, calls_in
from agl_core.genai._wire import Json

__all__ = [
    "chat_turns",
    "fold_after_results",
    "late_instructions",
    "leading_instructions",
    "with_call_ids",
]

_JOINED: Final = ("system", "user", "assistant")
_INSTRUCTS: Final = ("system", "developer")


def chat_turns(messages: list[Json]) -> list[Json]:
    """Return messages of chat in the order of roles that every chat template accepts.

    There is one system message, at the start: templates of Qwen, Llama and others refuse or drop a
    second one, a late one, and the role "developer". Leading instructions are joined; a later one
    becomes a user message. Neighbours of the user, and of the assistant, become one message:
    templates of Mistral and Gemma refuse two in a row.
    """
    turns: list[Json] = []
    for message in messages:
        if message.get("role") not in _INSTRUCTS:
            role = message.get("role")
        else:
            role = "system" if not turns or turns[-1]["role"] == "system" else "user"
        message = {**message, "role": role}
        if turns and turns[-1]["role"] == role and role in _JOINED:
            turns[-1] = _join_messages(turns[-1], message)
        else:
            turns.append(message)
    return turns


def _join_messages(first: Json, second: Json) -> Json:
    """Return two messages of one role as one."""
    joined = {**first, **second, "content": _join_content(first["content"], second["content"])}
    if first.get("tool_calls"):
        joined["tool_calls"] = [*first["tool_calls"], *second.get("tool_calls", ())]
    if first.get("reasoning_content"):
        thoughts = (first["reasoning_content"], second.get("reasoning_content", ""))
        joined["reasoning_content"] = "".join(thoughts)
    return joined


def _join_content(first: Any, second: Any) -> Any:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*map(as_part, as_list(first)), *map(as_part, as_list(second))]


def fold_after_results(messages: list[Json]) -> list[Json]:
    """Return messages in which no message of the user follows a tool's result.

    Templates of Mistral and Gemma take tool calls and results as a part of the assistant's turn, so
    they refuse what the user says before the assistant has answered. It is added to the result.
    """
    folded: list[Json] = []
    for message in messages:
        last = folded[-1] if folded else {}
        if message.get("role") == "user" and last.get("role") == "tool":
            content = _join_content(last.get("content"), message.get("content"))
            folded[-1] = {**last, "content": content}
        else:
            folded.append(message)
    return folded


def leading_instructions(items: list[Json]) -> int:
    """Return how many messages of the role system or developer come before all others."""
    others = (place for place, item in enumerate(items) if item.get("role") not in _INSTRUCTS)
    return next(others, len(items))


def late_instructions(items: list[Json]) -> bool:
    """Return whether a message of the role system or developer follows one of another role."""
    return any(item.get("role") in _INSTRUCTS for item in items[leading_instructions(items) :])


def with_call_ids(messages: list[Json]) -> Iterator[Json]:
    """Yield messages of chat in which every call and every result of a tool has an id.

    ``function_call`` and the role "function", the form before tools, have none: a result answers
    the call before it.
    """
    number = 0
    for message in messages:
        if isinstance(message.get("function_call"), dict) and not message.get("tool_calls"):
            number += 1
            (call,) = calls_in(message)
            yield {**message, "tool_calls": [{"id": f"call_{number}", **call}]}
        elif message.get("role") == "function":
            yield {**message, "role": "tool", "tool_call_id": f"call_{number}"}
        else:
            yield message
