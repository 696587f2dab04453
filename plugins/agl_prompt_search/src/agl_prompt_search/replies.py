"""The prompt in a model's reply: without the model's thoughts, remarks and wrappings.

A model that is asked for nothing but a prompt often sends more: ``<think>`` blocks, "Here is the
new prompt:", a code fence, tags, quotes or a JSON object around it. Whatever is taken off here
would otherwise become a part of the prompt. What the present prompt itself begins or ends with
stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

__all__ = ["prompt_in", "without_thoughts"]

_THOUGHTS: Final = r"think|thinking|thought|reasoning|scratchpad"
_THOUGHT: Final = re.compile(rf"\A\s*<({_THOUGHTS})>.*?(</\1>\s*|\Z)", re.DOTALL | re.IGNORECASE)
_REST: Final = re.compile(rf".*</({_THOUGHTS})>\s*", re.DOTALL | re.IGNORECASE)
_TAGGED: Final = re.compile(r"<(\w*prompt\w*)>\s*(?P<text>.*)\s*</\1>", re.DOTALL | re.IGNORECASE)
_REMARK: Final = re.compile(
    r"\A[#*\s]*(sure|certainly|of course|okay|ok|here|below|this is|the following|(the|my|your)?\s*"
    r"(new|revised|updated|improved|rewritten|edited|final|complete|optimi[sz]ed)\b)"
    r"[^\n]{0,160}?:[*\s]*(\n|\Z)",
    re.IGNORECASE,
)
_FENCE: Final = re.compile(r"^ {0,3}(?P<marks>`{3,}|~{3,})[ \t]*(?P<info>[^\n`]*)$", re.MULTILINE)
_QUOTES: Final = (('"', '"'), ("'", "'"), ("“", "”"), ("«", "»"), ("`", "`"))


def without_thoughts(text: str) -> str:
    """Return a reply without the model's thoughts before its answer.

    Empty if the thoughts never end: the answer is missing. Some servers leave out the tag that
    begins the thoughts, because it is a part of their request.
    """
    while found := _THOUGHT.match(text):
        text = text[found.end() :]
    closed = _REST.match(text)
    if closed and not re.search(rf"<({closed[1]})>", text[: closed.end()], re.IGNORECASE):
        text = text[closed.end() :]
    return text.strip()


def prompt_in(reply: str, present: str, names: frozenset[str] = frozenset()) -> str:
    """Return the new prompt in a reply.

    Args:
        reply: The model's answer.
        present: The prompt that the model was asked to edit.
        names: Placeholders that the prompt must have; they tell a fenced prompt with remarks
            around it from a prompt with a fenced example.
    """
    text, present = without_thoughts(reply), present.strip()
    steps: Sequence[Callable[[str], str]] = (
        lambda it: it if _TAGGED.search(present) else _untagged(it, names),
        lambda it: it if _REMARK.match(present) else _REMARK.sub("", it, count=1).strip(),
        lambda it: _unfenced(it, names, fenced=present.startswith(("```", "~~~"))),
        lambda it: it if present.startswith("{") else _from_json(it),
        lambda it: _unquoted(it, present),
    )
    before = None
    while text != before:  # a fence may be around tags, or tags around a fence
        before = text
        for step in steps:
            text = step(text)
    return text


def _untagged(text: str, names: frozenset[str]) -> str:
    """Return what is within tags named after a prompt, if these hold all of the prompt."""
    found = _TAGGED.search(text)
    if found is None:
        return text
    whole = not (text[: found.start()] + text[found.end() :]).strip()
    return found["text"].strip() if whole or _holds_all(found["text"], text, names) else text


def _unfenced(text: str, names: frozenset[str], *, fenced: bool) -> str:
    """Return what is within a code fence, if that holds all of the prompt."""
    fences = list(_FENCE.finditer(text))
    if len(fences) < 2 or fenced:
        return text
    first, last = fences[0], fences[-1]
    inside = text[first.end() : last.start()].strip()
    outside = text[: first.start()] + text[last.end() :]
    if last["info"].strip() or first["marks"][0] != last["marks"][0]:
        return text
    # Several blocks one after the other are not one block around others: there, a fence with a
    # language, or a shorter one, follows the first.
    inner = fences[1:-1]
    if inner and not (inner[0]["info"].strip() or len(inner[0]["marks"]) < len(first["marks"])):
        return text
    if not outside.strip() or _holds_all(inside, text, names):
        return inside
    return text


def _holds_all(inside: str, text: str, names: frozenset[str]) -> bool:
    """Return whether all placeholders of a text are in a part of it."""
    return bool(names) and all(
        inside.count(f"{{{name}") == text.count(f"{{{name}") > 0 for name in names
    )


def _from_json(text: str) -> str:
    """Return the only text of a JSON object under a key such as ``prompt``, or a JSON string."""
    if not text.startswith(("{", '"')):
        return text
    try:
        value: Any = json.loads(text, strict=False)
    except ValueError:
        return text
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        found = [it for key, it in table.items() if "prompt" in key.lower() or len(table) == 1]
        value = found[0] if len(found) == 1 else None
    return value.strip() if isinstance(value, str) else text


def _unquoted(text: str, present: str) -> str:
    for begin, end in _QUOTES:
        inside = text[1:-1]
        if len(text) < 2 or text[0] != begin or text[-1] != end:
            continue
        if begin in inside or end in inside or (present[:1], present[-1:]) == (begin, end):
            continue
        return inside.strip()
    return text
