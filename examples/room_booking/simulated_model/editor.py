"""Critiques and edits of prompts by the simulated model, most of them useful.

The request holds a prompt, and transcripts, feedback or a critique. The model picks a rule that the
prompt lacks, with a probability that grows with the hints in the rest of the text, and adds a
sentence, or two if it may change several things. Some sentences have no effect and some do harm, so
a search has to measure each edit. Placeholders in braces are kept.
"""

from __future__ import annotations

import re
from random import Random
from typing import Literal

from simulated_model.rules import HARMFUL, RULES, USELESS, Rule, followed

__all__ = ["Ask", "criticise", "edit", "find_prompt", "what_is_asked"]

Ask = Literal["edit", "critique", "other"]

_USELESS_SHARE, _HARMFUL_SHARE = 0.2, 0.12
_BESIDE_THE_POINT = "The tone could be more polite and professional."

_WANTS_EDIT = re.compile(
    r"(?<!not )\b(return|write|output|provide|give|produce|rewrite|revise|edit|propose|improve)\b"
    r"[^.\n]{0,80}\b(prompt|instructions?)\b"
)
_WANTS_CRITIQUE = re.compile(r"critique|critici[sz]e|what went wrong|weakness|shortcoming|diagnos")

# Places of the prompt in the text: in tags, in a fence, or under a heading.
_FLAGS = re.DOTALL | re.IGNORECASE | re.MULTILINE
_PLACES = (
    re.compile(r"<(\w*(?:prompt|instructions?)\w*)>\s*(?P<prompt>.*?)\s*</\1>", _FLAGS),
    re.compile(r"```\w*\n(?P<prompt>.*?)\n?```", _FLAGS),
    re.compile(
        r"^#+[^\n]*\b(?:prompt|instructions?)\b[^\n]*\n+(?P<prompt>.*?)\s*(?=^#+ |\Z)", _FLAGS
    ),
)


def what_is_asked(system: str, user: str) -> Ask:
    """Return the kind of a request without tools.

    The prompt in the request may mention instructions itself, so its text is ignored.
    """
    prompt = find_prompt(user)
    text = (system + "\n" + (user.replace(prompt, "") if prompt else user)).lower()
    if "<critique>" in text or _WANTS_EDIT.search(text):
        return "edit"
    return "critique" if _WANTS_CRITIQUE.search(text) else "other"


def find_prompt(text: str) -> str | None:
    """Return the prompt that the text is about."""
    for place in _PLACES:
        if found := place.search(text):
            return found["prompt"]
    return None


def edit(text: str, dice: Random) -> str:
    """Return an edited prompt, fenced if the text asks for a fence."""
    prompt = find_prompt(text) or ""
    luck = dice.random()
    rules = _lacking(prompt, text, dice)[: _most_changes(text)]
    if luck < _HARMFUL_SHARE:
        sentences = [dice.choice(HARMFUL)]
    elif luck < _HARMFUL_SHARE + _USELESS_SHARE or not rules:
        sentences = [dice.choice(USELESS)]
    else:
        sentences = [dice.choice(rule.advice) for rule in rules]
    fresh = [sentence for sentence in sentences if sentence not in prompt]
    edited = "\n".join([prompt.rstrip(), *fresh])
    return f"```\n{edited}\n```" if _wants_fence(text) else edited


def criticise(text: str, dice: Random) -> str:
    """Return a critique of one to three points, some of which may be irrelevant."""
    rules = _lacking(find_prompt(text) or "", text, dice)[: dice.choice([1, 2, 2, 3])]
    points = [
        _BESIDE_THE_POINT if dice.random() < _USELESS_SHARE else rule.critique for rule in rules
    ]
    return "\n".join(f"- {point}" for point in dict.fromkeys(points or [_BESIDE_THE_POINT]))


def _lacking(prompt: str, text: str, dice: Random) -> list[Rule]:
    """Return the rules that the prompt lacks, most important first.

    If the text holds a critique, return only the rules that it names. Otherwise the order is
    random, and a rule with more hints in the text tends to come earlier.
    """
    told = followed(prompt)
    rest = (text.replace(prompt, "") if prompt else text).lower()
    lacking = [rule for rule in RULES if rule.name not in told]
    named = [rule for rule in lacking if rule.critique.lower() in rest]
    # Weighted sampling without replacement: Efraimidis and Spirakis, 2006.
    keys = {
        rule.name: dice.random() ** (1 / (1 + 3 * min(5, len(re.findall(rule.evidence, rest)))))
        for rule in named or lacking
    }
    return sorted(named or lacking, key=lambda rule: -keys[rule.name])


def _most_changes(text: str) -> int:
    """Return how many rules an edit may add: one if the text asks for one, else a few."""
    alone = re.search(r"\b(one|single)[ -](aspect|issue|point|change|thing|problem)", text.lower())
    return 1 if alone else 2


def _wants_fence(text: str) -> bool:
    return re.search(r"(within|inside|in|between) (triple backticks|```)", text.lower()) is not None
