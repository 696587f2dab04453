"""The auxiliary calls of well-known programs, recognised by what they ask for.

Claude Code, OpenCode, Gemini CLI, Qwen Code, goose, aider, Open WebUI and LibreChat ask a model, in
calls of their own, for the title of a session, for whether a topic is new, for who speaks next.
Their wording changes with each release, so a pattern is the gist of what they ask for and not a
sentence. A call that offers tools is never one of these.
"""

from __future__ import annotations

import re
from typing import Final

from agl_core.adapter import RecordedCall

__all__ = ["purpose_of"]

_LONGEST: Final = 8_000
"""Characters of an instruction that is searched. Those of agents are longer, and may say what to do
when a user asks for a title; those of auxiliary calls are not."""

_TALK: Final = r"(?:conversation|chat|session|thread|dialog(?:ue)?|coding task)"
_ASK: Final = (
    r"(?:generat|creat|writ|provid|produc|giv|suggest|extract|summari[sz]|captur|need|com[ei])"
)


def _gist(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_PURPOSES: Final = (
    (
        "title",
        _gist(
            rf"\b{_ASK}\w*\b.{{0,80}}\b(?:title|headline)s?\b.{{0,120}}\b{_TALK}\b",
            rf"\b{_ASK}\w*\b.{{0,80}}\b{_TALK}\b.{{0,80}}\btitle\b",
            rf"\b(?:{_TALK}|thread) titles?\b.{{0,40}}\b(?:only|generat|maker|writer)",
            r"\byou are an? title (?:generator|maker|writer)\b",
            rf"\bsummari[sz]e this (?:coding )?{_TALK} in (?:under|at most|less than|\d)",
            rf"\bdescription of this {_TALK} in \S+ words? or less\b",
        ),
    ),
    (
        "topic check",
        _gist(
            r"\bwhether (?:this|the|a) (?:new )?message \w+ a new .{0,30}topic",
            r"\bif this message indicates a new conversation topic\b",
            r"\bisNewTopic\b",
        ),
    ),
    (
        "next speaker",
        _gist(
            r"\bwho should (?:logically )?speak next\b",
            r"\bnext_speaker\b",
        ),
    ),
    (
        "tags",
        _gist(rf"\b{_ASK}\w*\b.{{0,40}}\btags\b.{{0,80}}\bthemes? of the {_TALK}\b"),
    ),
    (
        "suggested prompts",
        _gist(
            rf"\bsuggest\b.{{0,60}}\bfollow-?up (?:questions|prompts)\b.{{0,120}}\b{_TALK}\b",
            r"\bpredict what the user (?:would|will|might) (?:naturally )?(?:type|say|ask) next\b",
        ),
    ),
    (
        "commit message",
        _gist(r"\bgenerat\w*\b.{0,60}\bgit commit messages?\b.{0,80}\bdiffs?\b"),
    ),
    (
        "command check",
        _gist(
            r"\bextract any file ?paths that this command reads or modifies\b",
            r"\bdetermine the command prefix\b",
        ),
    ),
    (
        "loop check",
        _gist(r"\bdetermin\w+ (?:if|whether) the conversation is stuck in (?:a|an unproductive) "),
    ),
)
_PROBES: Final = frozenset({"count", "foo", "hello", "hi", "ping", "quota", "test", "warmup"})


def purpose_of(call: RecordedCall) -> str | None:
    """Return what an auxiliary call of a well-known program is for; None for any other call."""
    if call.tools:
        return None
    if len(call.messages) == 1 and call.request.strip().lower() in _PROBES:
        return "probe" if call.max_tokens == 1 or call.request == "Warmup" else None
    texts = [text for text in (call.instructions, call.request) if 0 < len(text) <= _LONGEST]
    for purpose, gist in _PURPOSES:
        if any(gist.search(text) for text in texts):
            return purpose
    return None
