"""The simulated model: it explores, edits what it has read, and mends its first mistakes.

It knows the faults of the tasks. Its first change is right for two of them; the failing tests tell
it to try again. It never mends the cart, whose own test passes too early.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from agl_scripted import Reply, SeenRequest, ToolCall

__all__ = ["answer"]


class Edit(NamedTuple):
    path: str
    old_text: str
    new_text: str


EDITS = {
    "stats.py": [
        Edit(
            "stats.py",
            "    return ordered[len(ordered) // 2]\n",
            "    half = len(ordered) // 2\n"
            "    if len(ordered) % 2:\n        return ordered[half]\n"
            "    return (ordered[half - 1] + ordered[half]) / 2\n",
        )
    ],
    "text.py": [
        Edit("text.py", 'replace(" ", "-")', 'replace("  ", " ").replace(" ", "-")'),
        Edit(
            "text.py",
            'title.lower().replace("  ", " ").replace(" ", "-")',
            '"-".join(re.findall(r"[a-z0-9]+", title.lower()))',
        ),
        Edit("text.py", "def slug", "import re\n\n\ndef slug"),
    ],
    "account.py": [
        Edit(
            "account.py",
            "        self.balance -= amount\n",
            "        if amount > self.balance:\n            raise ValueError(amount)\n"
            "        self.balance -= amount\n",
        )
    ],
    "tax.py": [Edit("tax.py", "int(cents * (1 + RATE))", "int(cents * (1 + RATE) + 0.5)")],
}


def answer(request: SeenRequest) -> Reply:
    """Return the next step in Anthropic's protocol."""
    blocks = [
        block
        for message in request.body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    results = [_text(block) for block in blocks if block["type"] == "tool_result"]
    if not calls:
        return _call(0, "list_files")
    path = next(path for path in EDITS if path in results[0])
    if len(calls) == 1:
        return _call(1, "read_file", path=path)
    edits = [call for call in calls if call["name"] == "replace"]
    careful = "Run the tests" in str(request.body.get("system"))
    last = calls[-1]["name"]
    if last == "replace" and careful:
        return _call(len(calls), "run_tests")
    passing = last == "run_tests" and _all_pass(results[-1])
    done = len(edits) == len(EDITS[path]) or passing or (edits and not careful)
    if done:
        return Reply(f"I changed {path}.")
    return _call(len(calls), "replace", **EDITS[path][len(edits)]._asdict())


def _call(number: int, name: str, **arguments: str) -> Reply:
    return Reply(tool_calls=[ToolCall(name, arguments, id=f"toolu_{number}")])


def _all_pass(output: str) -> bool:
    passed, _, run, *_ = output.split()
    return passed == run


def _text(block: dict[str, Any]) -> str:
    content = block["content"]
    return content if isinstance(content, str) else content[0]["text"]
