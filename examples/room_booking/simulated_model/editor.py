"""How the simulated model criticises and edits prompts: usefully most of the time.

It is shown a prompt, and transcripts, feedback or a critique. It looks for a rule that the prompt
lacks, the likelier the more the rest of the text hints at it, and adds one sentence. At times the
sentence is useless, at times it does harm: a search has to find out which. Placeholders in braces
are kept.
"""

from __future__ import annotations

import re
from random import Random

from simulated_model.rules import HARMFUL, RULES, USELESS, Rule, followed

__all__ = ["Ask", "criticise", "edit", "find_prompt", "what_is_asked"]

Ask = str
"""``"edit"``, ``"critique"`` or ``"other"``."""

_USELESS_SHARE, _HARMFUL_SHARE = 0.2, 0.12

_WANTS_EDIT = re.compile(
    r"(?<!not )\b(return|write|output|provide|give|produce|rewrite|revise|edit|propose|improve)\b"
    r"[^.\n]{0,80}\b(prompt|instructions?)\b"
)
_WANTS_CRITIQUE = re.compile(r"critique|critici[sz]e|what went wrong|weakness|shortcoming|diagnos")

# Where the prompt stands in the text: in tags, in a fence, or under a heading.
_FLAGS = re.DOTALL | re.IGNORECASE | re.MULTILINE
_PLACES = (
    re.compile(r"<(\w*(?:prompt|instructions?)\w*)>\s*(?P<prompt>.*?)\s*</\1>", _FLAGS),
    re.compile(r"```\w*\n(?P<prompt>.*?)\n?```", _FLAGS),
    re.compile(
        r"^#+[^\n]*\b(?:prompt|instructions?)\b[^\n]*\n+(?P<prompt>.*?)\s*(?=^#+ |\Z)", _FLAGS
    ),
)


def what_is_asked(system: str, user: str) -> Ask:
    """Tell what a request without tools wants.

    The prompt under discussion may itself speak of instructions, so it is left out of account.
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
    rule = _missing(prompt, text, dice)
    if luck < _HARMFUL_SHARE:
        sentence = dice.choice(HARMFUL)
    elif luck < _HARMFUL_SHARE + _USELESS_SHARE or rule is None:
        sentence = dice.choice(USELESS)
    else:
        sentence = dice.choice(rule.advice)
    edited = f"{prompt.rstrip()}\n{sentence}" if sentence not in prompt else prompt
    return f"```\n{edited}\n```" if _wants_fence(text) else edited


def criticise(text: str, dice: Random) -> str:
    """Return a critique of one to three points; one of them may be beside the point."""
    prompt = find_prompt(text) or ""
    points: list[str] = []
    for _ in range(dice.choice([1, 2, 2, 3])):
        rule = _missing(prompt, text, dice)
        if rule is None or dice.random() < _USELESS_SHARE:
            points.append("The tone could be more polite and professional.")
        else:
            points.append(rule.critique)
    return "\n".join(f"- {point}" for point in dict.fromkeys(points))


def _missing(prompt: str, text: str, dice: Random) -> Rule | None:
    """Draw a rule that the prompt lacks, weighted by the hints in the rest of the text."""
    told = followed(prompt)
    lacking = [rule for rule in RULES if rule.name not in told]
    if not lacking:
        return None
    rest = (text.replace(prompt, "") if prompt else text).lower()
    weights = [
        1 + 3 * min(5, len(re.findall(rule.evidence, rest))) + 50 * (rule.critique.lower() in rest)
        for rule in lacking
    ]
    return dice.choices(lacking, weights)[0]


def _wants_fence(text: str) -> bool:
    return re.search(r"(within|inside|in|between) (triple backticks|```)", text.lower()) is not None
