"""The simulated model: it opens one product after the other, and remembers only what it is sent."""

from __future__ import annotations

import re
from typing import Any

from agl_scripted import Reply, SeenRequest

__all__ = ["answer"]

_GOAL = re.compile(r"Buy a (\w+ \w+) of (\w+), size (\w+), for at most (\d+)")
_ITEM = re.compile(r"(P\d+): .* of (\w+) for (\d+)\. Size chosen: (\w+)")


def answer(request: SeenRequest) -> Reply:
    """Return the next action."""
    messages: list[dict[str, Any]] = list(request.body["messages"])
    goal = _GOAL.search(messages[0]["content"])
    assert goal is not None
    title, material, size, limit = goal.groups()
    page = messages[-1]["content"]
    if page.startswith("Home"):
        return Reply(f"search[{title}]")
    item = _ITEM.search(page)
    if item is not None:
        if item[2] != material or int(item[3]) > int(limit):
            return Reply("click[back]")
        return Reply("click[buy]" if item[4] == size else f"click[{size}]")
    tried = {m["content"] for m in messages if m["role"] == "assistant"}
    links = [f"click[{link}]" for link in re.findall(r"click\[(P\d+|next)\]", page)]
    # Having forgotten what it has tried, it tries it again.
    return Reply(next((link for link in links if link not in tried or "next" in link), links[0]))
