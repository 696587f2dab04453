"""The simulated model: it follows a question from page to page, as far as it has the pages."""

from __future__ import annotations

import re
from typing import Any

from agl_scripted import Reply, SeenRequest, ToolCall

__all__ = ["answer"]

# What each hop reads in the page of the name that it has reached.
_LED = "{} is a company of \\d+ people. It is led by ([A-Z]\\w+ [A-Z]\\w+)"
_BORN = "{} was born in ([A-Z]\\w+)"
_RIVER = "{} is a town on the river ([A-Z]\\w+)"


def answer(request: SeenRequest) -> Reply:
    """Return the answer if the pages so far have it; else a search for the next name."""
    messages: list[dict[str, Any]] = list(request.body["messages"])
    asked = messages[0]["content"]
    read = "\n".join(m["content"] for m in messages if m["role"] == "tool") or asked
    name, hops = _plan(asked)
    for hop in hops:
        found = re.search(hop.format(re.escape(name)), read)
        if found is None:
            queries = [
                c["function"]["arguments"] for m in messages for c in m.get("tool_calls", ())
            ]
            if not request.body.get("tools") or any(name in query for query in queries):
                return Reply("unknown")
            return Reply(tool_calls=[ToolCall("search", {"query": name})])
        name = found.group(1)
    return Reply(name)


def _plan(asked: str) -> tuple[str, list[str]]:
    """Return the name that a question starts from, and the hops to its answer."""
    company = re.findall(r"(?:leads|head of) ([A-Z]\w+ [A-Z]\w+)", asked)[-1]
    hops = [_LED] if "leads" in asked else [_LED, _BORN]
    return company, [*hops, _RIVER] if "river lies" in asked else hops
