"""Rules that instructions can switch on in the simulated model, and the words that do so.

The model reads instructions sentence by sentence. A sentence switches a rule on or off if it
contains the rule's words. Later sentences win.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["HARMFUL", "RULES", "USELESS", "Rule", "followed"]


@dataclass(frozen=True)
class Rule:
    """One requirement of a correct booking.

    Attributes:
        name: Subject of the rule.
        heard: Instruction words that switch the rule on.
        dropped: Instruction words that switch the rule off.
        evidence: Words in transcripts and feedback that hint at its absence.
        critique: An editor's critique of a prompt without the rule.
        advice: Sentences by which an editor adds the rule.
    """

    name: str
    heard: str
    dropped: str
    evidence: str
    critique: str
    advice: tuple[str, ...]


RULES = (
    Rule(
        "capacity",
        heard=r"(?<!same )capacity|(?<!fewest )seats?\b|(big|large) enough|number of (people|att)",
        dropped=r"squeeze",
        evidence=r"has a capacity of|too small|not enough seats",
        critique="It does not say that the room's capacity must cover the number of people.",
        advice=(
            "The room must have enough seats for everyone who attends.",
            "Check that the capacity covers the number of people.",
        ),
    ),
    Rule(
        "equipment",
        heard=r"equipment|equipped|projector|whiteboard|facilities",
        dropped=r"(equipment|projector)s? can be (brought|added)",
        evidence=r"lacks equipment|(need|have) (a projector|a whiteboard|a conference|video)",
        critique="It does not mention the equipment that the request asks for.",
        advice=(
            "Choose only rooms with all the equipment that is asked for.",
            "The room must be equipped with everything the request names.",
        ),
    ),
    Rule(
        "accessible",
        heard=r"accessib|wheelchair|step-free|disabilit",
        dropped=r"(accessib\w+|wheelchair\w*) (is|are) (rarely|never)",
        evidence=r"not accessible|wheelchair|step-free",
        critique="It ignores that some guests need an accessible room.",
        advice=(
            "If anyone uses a wheelchair or needs step-free access, the room must be accessible.",
        ),
    ),
    Rule(
        "free at the start",
        heard=r"(?<!step-)\bfree\b|availab|unoccupied|(already|not) booked|existing booking|clash",
        dropped=r"double.book",
        evidence=r"not available|already taken|double.booked",
        critique="It does not ask whether the room is available at the requested time.",
        advice=(
            "The room must be free at the requested time.",
            "Never take a room that is already booked.",
        ),
    ),
    Rule(
        "free to the end",
        heard=r"overlap|(whole|entire|full) (time|duration|meeting|slot)|throughout|until the end",
        dropped=r"overlaps? (is|are) (fine|acceptable)",
        evidence=r"overlap",
        critique="It does not consider bookings that begin in the middle of the meeting.",
        advice=(
            "No existing booking may overlap the meeting, from its start until the end.",
            "The room has to stay free for the entire duration of the meeting.",
        ),
    ),
    Rule(
        "smallest",
        heard=r"smallest|tightest|fewest (spare )?seats|no larger than",
        dropped=r"largest|biggest|most spacious",
        evidence=r"smaller room|too large|wastes? space",
        critique="It does not say which of several suitable rooms to prefer.",
        advice=(
            "Among the suitable rooms choose the smallest.",
            "Prefer the tightest fit: the suitable room with the fewest seats.",
        ),
    ),
    Rule(
        "ties",
        heard=r"\bties?\b|same (size|capacity)|equally (small|large)|lowest id",
        dropped=r"whichever you like",
        evidence=r"\bties\b|lower id",
        critique="It leaves open what to do when two rooms are equally good.",
        advice=("If rooms tie, take the one with the lowest id.",),
    ),
    Rule(
        "no room",
        heard=r"\bno[ -]room\b|nothing (fits|is suitable)|no suitable|none (fits|is suitable)",
        dropped=r"always offer (some|a) room",
        evidence=r"no room was suitable|should have said so",
        critique="It does not say what to answer when there is no suitable room.",
        advice=("If nothing is suitable, answer exactly: No Room",),
    ),
    Rule(
        "answer format",
        heard=r"\b(only|just)\b[^.]*\b(id|name)\b|\b(id|name)\b[^.]*\b(only|alone|nothing else)",
        dropped=r"alternative|explain your (choice|answer)",
        evidence=r"names several rooms|names no room|unclear answer",
        critique="It does not fix the form of the answer, which should be one room id.",
        advice=(
            "Reply with the room id only, for example R07.",
            "Your answer is the id of one room and nothing else.",
        ),
    ),
)

# Useless and harmful edits, which a real model also proposes.
USELESS = (
    "Be polite and professional.",
    "Think carefully step by step before you answer.",
    "You are an expert with twenty years of experience.",
    "Double-check your work.",
    "Accuracy matters a great deal to our guests.",
)
HARMFUL = (
    "Guests like space, so prefer the largest option.",
    "Name an alternative as well, in case the guest changes plans.",
    "Always offer some room, even on a busy day.",
    "Equipment can be brought in later, so it matters little.",
    "People can squeeze in if need be.",
)

_IGNORE = re.compile(r"\b(ignore|do not (check|worry|care)|don't (check|worry|care)|need not)\b")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")


def followed(instructions: str) -> frozenset[str]:
    """Return the names of the rules that these instructions switch on."""
    names: set[str] = set()
    for sentence in _SENTENCE.split(instructions.lower()):
        for rule in RULES:
            heard = re.search(rule.heard, sentence) is not None
            if re.search(rule.dropped, sentence) or (heard and _IGNORE.search(sentence)):
                names.discard(rule.name)
            elif heard:
                names.add(rule.name)
    return frozenset(names)
