"""The prompt in a model's reply: without the model's thoughts, remarks and wrappings.

A model that is asked for nothing but a prompt often sends more: ``<think>`` blocks, "Here is the
new prompt:", a code fence, rules, tags, quotes or a JSON object around it, tokens of its chat
template, an offer of further help. Whatever is taken off here would otherwise become a part of the
prompt. What the present prompt itself begins or ends with stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from textwrap import dedent
from typing import Any, Final, cast

__all__ = ["prompt_in", "without_thoughts"]

_THOUGHTS: Final = r"(?:seed:)?think|thinking|thought|reasoning|scratchpad|analysis|reflection"
_THOUGHT: Final = re.compile(rf"\A\s*<({_THOUGHTS})>.*?(</\1>\s*|\Z)", re.DOTALL | re.IGNORECASE)
_MARKS_OF_THOUGHTS: Final = (
    ("[THINK]", "[/THINK]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
)
_FINAL_CHANNEL: Final = "<|channel|>final<|message|>"
"""What the answer of gpt-oss follows
(https://developers.openai.com/cookbook/articles/openai-harmony)."""
_TEMPLATE_TOKENS: Final = r"(?:<\|[^|<>\s]{1,40}\|>|</?s>|\[/?INST\]|[\ufeff\u200b])"
_AT_THE_ENDS: Final = re.compile(
    rf"\A(?:\s*{_TEMPLATE_TOKENS})+\s*|\s*(?:{_TEMPLATE_TOKENS}\s*)+\Z", re.IGNORECASE
)
_REST: Final = re.compile(rf".*</({_THOUGHTS})>\s*", re.DOTALL | re.IGNORECASE)
_REMARK_AND_THOUGHTS: Final = re.compile(
    r"\A\s*(?:(?:sure|certainly|of course|okay|ok)\b[^\n<]{0,160}?[.,:!]\s*)?"
    rf"<({_THOUGHTS})>.*?</\1>(?:\s*\n\s*|(?=[\w{{]))",
    re.DOTALL | re.IGNORECASE,
)
"""Other tags belong to a sentence of the prompt: "First write <thinking>...</thinking>, then"."""
_TAGGED: Final = re.compile(r"<(\w*prompt\w*)>\s*(?P<text>.*)\s*</\1>", re.DOTALL | re.IGNORECASE)
_ANY_TAGS: Final = re.compile(
    r"\A<(answer|final_answer|final|output|response|result|reply|text|template|instructions?)>"
    r"(?P<text>.*)</\1>\Z",
    re.DOTALL | re.IGNORECASE,
)
_CHANGED: Final = r"(new|revised|updated|improved|rewritten|edited|final|complete|optimi[sz]ed)"
_OPENING: Final = rf"(here|below|this is|the following|(the|my|your)?\s*{_CHANGED})\b"
_PROMPT: Final = (
    r"\b(prompt|template|version|rewrite|revision|edit|draft|"
    rf"{_CHANGED} (instructions?|text|wording))\b"
)
"""What a remark is about. Other first lines with a colon are a prompt's: "Below is a question:"."""
_REMARK: Final = re.compile(
    r"\A[#*\s]*((sure|certainly|of course|okay|ok)\b[^\n]{0,160}?|here (it is|you (go|are))"
    rf"|{_OPENING}[^\n]{{0,160}}?{_PROMPT}[^\n]{{0,160}}?|((the|my|your) )?{_CHANGED})"
    r":[*\s]*(\n|\Z)"
    r"|\A(hier ist|voici|aqu\u00ed (est\u00e1|tienes)|aqui est\u00e1|ecco|\u0432\u043e\u0442"
    r"|\u4ee5\u4e0b|\u8fd9\u662f|\u4e0b\u9762\u662f)[^\n]{0,160}?[:\uff1a][*\s]*\n",
    re.IGNORECASE,
)
_LABEL: Final = re.compile(
    rf"\A(?:assistant(?::|\n)\s*|[#*_\s]*({_CHANGED}\s+)?(system\s+)?prompt(\s+template)?[*_ ]*"
    r"(:[*_]*(?P<block>\s*[|>]-?\n)?\s*|\n+\s*))",
    re.IGNORECASE,
)
_LATER_LABEL: Final = re.compile(
    rf"^[#*_ ]*((the|my|your) )?{_CHANGED} (system )?prompt(?: template)?[*_ ]*:[*_ ]*$",
    re.IGNORECASE | re.MULTILINE,
)
_OFFER: Final = re.compile(
    r"\n\s*\n[*_#\s]*(let me know\b|(i )?hope (this|it)\b|feel free to (ask|adjust|let|modify)"
    r"|would you like me\b|this (new |revised |updated |improved )?(version|prompt) (is|now|keeps"
    r"|adds|makes|should|includes|addresses|clarifies|emphasi[sz]es)\b"
    r"|(key|main|summary of)( the)? (changes|improvements)\b|changes made\b"
    r"|i(\u2019|'| ha)ve (made|added|kept|changed|clarified|revised|improved)\b).*\Z",
    re.IGNORECASE | re.DOTALL,
)
_AFTERWORD: Final = re.compile(
    r"\A[*_#\s]*(tell me (if|whether) you (want|need|would|prefer)|hope (this|it)\b"
    r"|the (new|revised|updated|improved|rewritten|edited|optimi[sz]ed) "
    r"(version|prompt|template|wording|instructions?|text)\b"
    r"|this (version|prompt|keeps|adds|makes|includes|addresses|clarifies|emphasi[sz]es)\b"
    r"|(what (i )?changed|why (this|it) (is|works))\b|done[.!]?\Z"
    r"|i (made|added|kept|changed|clarified|revised|improved|removed|shortened|rewrote)\b)",
    re.IGNORECASE,
)
"""What models say after a prompt in a fence or between rules; alone, it may be a prompt's."""
_RULE: Final = re.compile(r"^ {0,3}([-*_=])\1{2,} *$", re.MULTILINE)
_FENCE: Final = re.compile(r"^ {0,3}(?P<marks>`{3,}|~{3,})[ \t]*(?P<info>[^\n`]*)$", re.MULTILINE)
_QUOTES: Final = (('"', '"'), ("'", "'"), ("“", "”"), ("«", "»"), ("`", "`"))


def without_thoughts(text: str) -> str:
    """Return a reply without the model's thoughts before its answer.

    Empty if the thoughts never end: the answer is missing. Some servers leave out the tag that
    begins the thoughts, because it is a part of their request.
    """
    if _FINAL_CHANNEL in text:
        text = text.rpartition(_FINAL_CHANNEL)[2]
    for begin, end in _MARKS_OF_THOUGHTS:
        if text.lstrip().startswith(begin):
            text = text.partition(end)[2]
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

    def without(pattern: re.Pattern[str], it: str) -> str:
        return it if pattern.search(present) else pattern.sub("", it).strip()

    steps: Sequence[Callable[[str], str]] = (
        lambda it: without(_AT_THE_ENDS, it),
        lambda it: it if _REST.match(present) else _after_thoughts(it, names),
        lambda it: it if _TAGGED.search(present) else _untagged(it, names),
        lambda it: it if _ANY_TAGS.match(present) else _ANY_TAGS.sub(r"\g<text>", it).strip(),
        lambda it: it if _LATER_LABEL.search(present) else _after_label(it, names),
        lambda it: without(_REMARK, it),
        lambda it: it if _LABEL.match(present) else _unlabelled(it),
        lambda it: it if _OFFER.search(present) else _without_offer(it, names),
        lambda it: _unfenced(it, names, present),
        lambda it: it if _RULE.match(present) else _unruled(it, names),
        lambda it: it if present.startswith(">") else _unindented(it),
        lambda it: it if present.startswith("{") else _from_json(it),
        lambda it: _unquoted(it, present),
    )
    before = None
    while text != before:  # a fence may be around tags, or tags around a fence
        before = text
        for step in steps:
            text = step(text)
    return text


def _places(text: str, name: str) -> list[str]:
    """Return where a placeholder begins in a text: ``{name``, and in Jinja ``{{ name``."""
    return re.findall(rf"\{{\{{?[-+]?\s*{re.escape(name)}(?!\w)", text)


def _named(text: str, names: frozenset[str]) -> set[str]:
    return {name for name in names if _places(text, name)}


def _is_bare(text: str) -> bool:
    """Return whether a text is nothing but placeholders: what the prompt says is elsewhere."""
    return not re.search(r"\w", re.sub(r"\{\{?[^{}]*\}?\}", "", text))


def _is_afterword(text: str) -> bool:
    """Return whether a text is what models say after a prompt, or nothing."""
    said = text.strip()
    return not said or bool(_AFTERWORD.match(said) or _OFFER.match(f"\n\n{said}"))


def _after_thoughts(text: str, names: frozenset[str]) -> str:
    """Return what follows thoughts that a remark comes before, if it is a whole prompt."""
    thoughts = _REMARK_AND_THOUGHTS.match(text)
    rest = text[thoughts.end() :] if thoughts else ""
    return rest.strip() if names and _named(rest, names) == names else text


def _after_label(text: str, names: frozenset[str]) -> str:
    """Return what follows "Improved prompt:", if all of the prompt does."""
    found = _LATER_LABEL.search(text)
    if found is None or not names:
        return text
    before, after = text[: found.start()], text[found.end() :]
    return after.strip() if not _named(before, names) and _named(after, names) else text


def _unlabelled(text: str) -> str:
    found = _LABEL.match(text)
    if found is None:
        return text
    rest = text[found.end() :]
    if found["block"]:  # of YAML
        rest = dedent("  " + rest)
    return rest.strip()


def _without_offer(text: str, names: frozenset[str]) -> str:
    found = _OFFER.search(text)
    return text if found is None or _named(found[0], names) else text[: found.start()].strip()


def _unruled(text: str, names: frozenset[str]) -> str:
    """Return what is between two rules, if that surely is all of the prompt."""
    rules = list(_RULE.finditer(text))
    if len(rules) < 2 or text[: rules[0].start()].strip():
        return text
    inside, after = text[rules[0].end() : rules[-1].start()], text[rules[-1].end() :]
    whole = not after.strip() or _is_whole(inside, after, text, names)
    return inside.strip() if whole else text


def _unindented(text: str) -> str:
    """Return a quotation of Markdown as the text that it quotes."""
    lines = text.splitlines()
    if not lines or not all(line.startswith(">") or not line.strip() for line in lines):
        return text
    return "\n".join(line.removeprefix(">").removeprefix(" ") for line in lines).strip()


def _untagged(text: str, names: frozenset[str]) -> str:
    """Return what is within tags named after a prompt, if these hold all of the prompt."""
    found = _TAGGED.search(text)
    if found is None:
        return text
    whole = not (text[: found.start()] + text[found.end() :]).strip()
    return found["text"].strip() if whole or _holds_all(found["text"], text, names) else text


def _unfenced(text: str, names: frozenset[str], present: str) -> str:
    """Return what is within a code fence, if that surely is all of the prompt."""
    fences = list(_FENCE.finditer(text))
    if not fences or present.startswith(("```", "~~~")):
        return text
    if len(fences) == 1:
        begins = not text[: fences[0].start()].strip()
        return text[fences[0].end() :].strip() if begins else text
    first, last = fences[0], fences[-1]
    inside = text[first.end() : last.start()].strip()
    before, after = text[: first.start()], text[last.end() :]
    if last["info"].strip() or first["marks"][0] != last["marks"][0]:
        return text
    # Several blocks one after the other are not one block around others: there, a fence with a
    # language, or a shorter one, follows the first.
    inner = fences[1:-1]
    if inner and not (inner[0]["info"].strip() or len(inner[0]["marks"]) < len(first["marks"])):
        return _last_block(text, names)
    if not (before + after).strip():
        return inside
    # A prompt that gives its task in a fence has instructions around it.
    shown = any(_named(block, names) for block in _blocks(present))
    return inside if not shown and _is_whole(inside, after, text, names) else text


def _blocks(text: str) -> list[str]:
    """Return what is within the code fences of a text; nothing if one of them does not end."""
    fences = list(_FENCE.finditer(text))
    if len(fences) % 2:
        return []
    pairs = zip(fences[::2], fences[1::2], strict=True)
    return [text[begin.end() : end.start()] for begin, end in pairs]


def _last_block(text: str, names: frozenset[str]) -> str:
    """Return the last of several blocks if each is a whole prompt: the old one, then the new."""
    blocks = _blocks(text)
    if not blocks or not names or _is_bare(blocks[-1]):
        return text
    whole = all(_named(block, names) == names for block in blocks)
    outside = text
    for block in blocks:
        outside = outside.replace(block, "", 1)
    return blocks[-1].strip() if whole and not _named(outside, names) else text


def _is_whole(inside: str, after: str, text: str, names: frozenset[str]) -> bool:
    """Return whether a part of a reply surely is the prompt, and the rest is about it."""
    return _holds_all(inside, text, names) and not _is_bare(inside) and _is_afterword(after)


def _holds_all(inside: str, text: str, names: frozenset[str]) -> bool:
    """Return whether all placeholders of a text are in a part of it."""
    return bool(names) and all(
        len(_places(inside, name)) == len(_places(text, name)) > 0 for name in names
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
        for part in ("prompt", "instruction", "template", ""):
            found = [it for key, it in table.items() if part in key.lower()]
            if len(found) == 1:
                break
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
