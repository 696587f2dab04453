"""The auxiliary calls of well-known programs, recognised by what they ask for.

Claude Code, OpenCode, Gemini CLI, Qwen Code, goose, aider, Open WebUI and LibreChat ask a model, in
calls of their own, for the title of a session, for whether a topic is new, for who speaks next.
Their wording changes with each release, so a pattern is the gist of what they ask for and not a
sentence. It has what the request is about, too: a title for *this conversation*, which no task is
likely to want. In doubt a call is one for the task, whose training would be lost otherwise. A call
that offers tools is never one of these.
"""

from __future__ import annotations

import re
from typing import Final

from agl_core.adapter import RecordedCall

__all__ = ["purpose_of"]

_LONGEST: Final = 8_000
"""Characters of an instruction that is searched. Those of agents are longer, and may say what to do
when a user asks for a title; those of auxiliary calls are not."""

_ASK: Final = r"(?:generat|creat|writ|provid|produc|giv|suggest|extract|captur|need|com[ei])"
_ABOUT: Final = r"(?! (?:history )?(?:about|among|at|between|from|of|on|with)\b)"
"""What never follows a talk with the user: a conversation *between two spies* is a subject."""
_TALK: Final = (
    r"(?:an?|our|the|this) (?:(?:above|current|entire|following|ongoing|user's) )?"
    rf"(?:chat(?: history)?|conversation|coding (?:conversation|session|task))\b{_ABOUT}"
)
"""The talk with the program's user. A bare session, thread or dialogue is as often one of a
conference, a forum or a data set, so those words do not count alone."""
_OF: Final = r"(?:captur\w+|describ\w+|find|for|of|reflect\w+|represent\w*|summari[sz]\w+)"
_TO_THE_LINK: Final = r"(?:(?!\b(?:about|for|from|in|into|of|on|to)\b)[^.!?\n]){0,100}?"
"""What may stand between a title and the link to what it is the title of: no other link. So a title
for *the article about* a conversation is none."""
_FEW: Final = r"(?:[1-9]|10|two|three|four|five|six|seven|eight|nine|ten)"
"""Words that a title has. Summaries, which may be the task, are longer."""


def _gist(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_PURPOSES: Final = (
    (
        "title",
        _gist(
            rf"\b{_ASK}\w*\b.{{0,80}}\b(?:title|headline)s?\b{_TO_THE_LINK}\b{_OF} {_TALK}",
            rf"\bsummari[sz]\w* {_TALK} (?:in)?to an? (?:[\w,-]+ ){{0,3}}title\b",
            rf"\bgiv\w+ {_TALK} an? (?:[\w,-]+ ){{0,3}}(?:title|name)\b",
            r"\b(?:creat|generat|produc)\w* an? (?:[\w,-]+ ){0,3}(?:chat|conversation) title\b",
            r"\byou are an? title (?:generator|maker|writer)\b"
            r".{0,80}\b(?:chat|conversation|session|thread) title\b",
            rf"\bsummari[sz]e {_TALK} in (?:(?:under|at most|less than) )?\d+ characters\b",
            rf"\bsummari[sz]e {_TALK} in (?:(?:under|at most|less than) )?{_FEW} words\b",
            rf"\bdescription of this (?:conversation|session) in {_FEW} words? or less\b",
        ),
    ),
    (
        "topic check",
        _gist(
            r"\b(?:if|whether) (?:this|the|a) (?:new )?message \w+ a new (?:chat|conversation) "
            r"topic\b",
            r"\bisNewTopic\b",
        ),
    ),
    (
        "next speaker",
        # An agent that leads a discussion asks the same of others; these programs, of themselves.
        _gist(
            r"\byour (?:immediately )?(?:last|preceding|previous) (?:message|reply|response|turn)\b"
            r".{0,300}\bwho should (?:logically )?speak next\b",
            r"\bnext_speaker\b[\s\S]{0,300}\buser\b[\s\S]{0,40}\bmodel\b",
        ),
    ),
    (
        "tags",
        _gist(
            rf"\b{_ASK}\w*\b.{{0,40}}\btags\b.{{0,80}}\bthemes? of {_TALK}",
        ),
    ),
    (
        "suggested prompts",
        _gist(
            r"\bsuggest\b.{0,60}\bfollow-?up (?:questions|prompts)\b.{0,40}\bthat the user "
            r"(?:could|might|will|would)\b",
            r"\bpredict what the user (?:would|will|might) (?:naturally )?type next\b",
        ),
    ),
    (
        "commit message",
        # Many diffs and one line each: an agent whose task is a commit message has one of them.
        _gist(r"\bgenerat\w*\b.{0,60}\bone-?line git commit messages\b.{0,80}\bdiffs\b"),
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
        _gist(
            r"\bdetermin\w+ (?:if|whether) the conversation is stuck in an? (?:[\w-]+,? ){0,3}"
            r"(?:loop|state)\b"
        ),
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
