"""The simulated model: it reads the file and mends it with the tools that the program offers."""

from __future__ import annotations

import json
import re
from typing import Any

from agl_scripted import Reply, SeenRequest, ToolCall

__all__ = ["answer"]

_OLD = "    return ordered[len(ordered) // 2]\n"
_NEW = (
    "    half = len(ordered) // 2\n"
    "    if len(ordered) % 2:\n"
    "        return ordered[half]\n"
    "    return (ordered[half - 1] + ordered[half]) / 2\n"
)
_PATCH = "".join(
    [
        "*** Begin Patch\n*** Update File: stats.py\n@@\n",
        *(f"-{line}\n" for line in _OLD.splitlines()),
        *(f"+{line}\n" for line in _NEW.splitlines()),
        "*** End Patch\n",
    ]
)
_WRITE = f"cat > stats.py <<'END'\ndef median(numbers):\n    ordered = sorted(numbers)\n{_NEW}END"
_BLOCK = f"stats.py\n```python\n<<<<<<< SEARCH\n{_OLD}=======\n{_NEW}>>>>>>> REPLACE\n```"
_FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The command with which mini-swe-agent ends."""

# By preference, as programs offer several.
_READERS = ("Read", "read", "read_file", "exec_command", "bash", "terminal")
_EDITORS = ("apply_patch", "Edit", "edit", "exec_command", "bash", "terminal")


def answer(request: SeenRequest) -> Reply:
    """Return the next step: read, edit, end."""
    text = json.dumps(request.body["messages"])
    tools = {tool["function"]["name"]: tool for tool in request.body.get("tools") or ()}
    if not tools:  # aider's edits are text; OpenCode asks for a title
        return Reply(f"I mend it.\n\n{_BLOCK}\n" if "SEARCH/REPLACE" in text else "Median")
    done = sum(message["role"] == "tool" for message in request.body["messages"])
    if done == 0:
        call = _call(tools, _READERS, text, command="cat stats.py")
        return Reply("I read the file first.", tool_calls=[call])
    if done == 1:
        return Reply(tool_calls=[_call(tools, _EDITORS, text, command=_WRITE)])
    if _FINISH in text:
        return Reply("Done.", tool_calls=[ToolCall("bash", {"command": _FINISH}, id=_id(text))])
    return Reply("The median of lists of even length is right now.")


def _call(tools: dict[str, Any], names: tuple[str, ...], text: str, *, command: str) -> ToolCall:
    """Return a call of the first of some tools that a program offers, with all it requires."""
    name = next(name for name in names if name in tools)
    folder = re.search(r"/[\w./-]*agl-coding-\w+/project", text)
    values = {
        "cmd": command,
        "command": command,
        "filepath": f"{folder[0]}/stats.py" if folder else "stats.py",
        "input": _PATCH,
        "newstring": _NEW,
        "oldstring": _OLD,
        "patchtext": _PATCH,
    }
    required = tools[name]["function"]["parameters"]["required"]
    arguments = {each: values[each.replace("_", "").lower()] for each in required}
    return ToolCall(name, arguments, id=_id(text))


def _id(text: str) -> str:
    """Return an id for a call, in the form that Mistral's template wants."""
    return f"call{text.count('tool_call_id'):05d}"
