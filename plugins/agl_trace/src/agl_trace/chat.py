"""Writes the model calls of a trace as a conversation: who said what, in order.

::

    call 1
      system     You book rooms.
      user       A room for 4 at 10:00.
      assistant  search_rooms({"seats": 4})
    call 2, goes on from call 1
      tool       ["Oslo", "Bergen"]
      assistant  Oslo.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import click

from agl_core.types import OpenAIMessages
from agl_trace.render import Style, clean_text

__all__ = ["render_chat"]

_ROLE: Final = 9  # columns: "assistant" and "developer"
_MARGIN: Final = 2
"""Columns before a role."""
_LEAST_TEXT: Final = 10
"""Columns of a message on a screen that is too narrow for it."""
_COLORS: Final = {
    "system": "bright_black",
    "developer": "bright_black",
    "user": "green",
    "assistant": "cyan",
    "tool": "yellow",
}


def render_chat(conversations: Sequence[OpenAIMessages], style: Style) -> Iterator[str]:
    """Yield the lines of conversations; messages that an earlier call has are not repeated.

    Args:
        conversations: One per model call, as the adapter ``messages`` makes them.
        style: Options of the output.
    """
    for number, conversation in enumerate(conversations, start=1):
        messages = conversation["messages"]
        earlier, known = _longest_beginning(messages, conversations[: number - 1])
        goes_on = f", goes on from call {earlier}" if known else ""
        head = f"call {number}{goes_on}"
        yield click.style(head, bold=True) if style.color else head
        for message in messages[known:]:
            yield from _message(cast("Mapping[str, Any]", message), style)


def _longest_beginning(
    messages: Sequence[Any], earlier: Sequence[OpenAIMessages]
) -> tuple[int, int]:
    """Return the number of the call whose whole conversation begins this one, and its length."""
    best = (0, 0)
    for number, conversation in enumerate(earlier, start=1):
        length = len(conversation["messages"])
        if length > best[1] and list(messages[:length]) == conversation["messages"]:
            best = (number, length)
    return best


def _message(message: Mapping[str, Any], style: Style) -> Iterator[str]:
    role = clean_text(str(message.get("role") or "?"), style)
    text = "\n".join(_parts(message)) or "(empty)"
    indent = " " * (_MARGIN + _ROLE + 2)
    width = max(style.width - len(indent), _LEAST_TEXT)
    first = f"{' ' * _MARGIN}{role:<{_ROLE}}  "
    for line in text.splitlines():
        wrapped = textwrap.wrap(clean_text(line, style), width)
        for part in wrapped or [""]:
            shown = (first + part).rstrip()
            color = _COLORS.get(role)
            yield click.style(shown, fg=color) if style.color and color else shown
            first = indent


def _parts(message: Mapping[str, Any]) -> Iterator[str]:
    content: Any = message.get("content")
    if isinstance(content, str) and content:
        yield content
    elif isinstance(content, list):
        for part in cast("list[Any]", content):
            yield _part(part)
    if refusal := message.get("refusal"):
        yield f"(refusal) {refusal}"
    for call in cast("Sequence[Any]", message.get("tool_calls") or ()):
        function: Mapping[str, Any] = call.get("function") or call.get("custom") or {}
        given = function.get("arguments", function.get("input", ""))
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        yield f"{function.get('name', '?')}({text})"


def _part(part: Any) -> str:
    """Return a part of a message: its text, or its kind if it is an image, a sound or a file."""
    if not isinstance(part, dict):
        return str(part)
    fields = cast("Mapping[str, Any]", part)
    text = fields.get("text", fields.get("refusal"))
    return text if isinstance(text, str) else f"({fields.get('type', 'part')})"
