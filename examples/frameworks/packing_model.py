"""The simulated model: it calls the tool only if the prompt asks for it, else it guesses."""

from __future__ import annotations

import re
from typing import Any

from agl_scripted import Reply, SeenRequest, ToolCall
from packing import NEEDED, WEATHER

__all__ = ["answer"]


def answer(request: SeenRequest) -> Reply:
    """Return the next step of whichever framework asks."""
    messages: list[dict[str, Any]] = list(request.body["messages"])
    if messages[-1]["role"] == "tool":
        return Reply(NEEDED[_text(messages[-1])])
    told = "\n".join(map(_text, messages))
    (city,) = {name for name in WEATHER if re.search(rf"travel to {name}", told)}
    if "Look up the weather" in told:
        return Reply(tool_calls=[ToolCall("get_weather", {"city": city})])
    return Reply("umbrella")


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
