"""Booking by the simulated model: it lists the rooms, then applies the rules in its instructions.

Its answer depends only on three texts, as a model's would: the instructions, the request, and the
tool's result. With a small probability it slips, that is, forgets a rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from random import Random
from typing import Any, NamedTuple

from simulated_model.rules import RULES, followed

__all__ = ["Request", "book", "read_request", "resolve_day"]

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_EQUIPMENT = {
    "projector": r"projector",
    "whiteboard": r"whiteboard",
    "video": r"video",
    "phone": r"\bphone",
}
_TIME = r"(\d{1,2}):(\d{2})(?:\s*([ap])\.?m)?"


class Request(NamedTuple):
    """A parsed request; times in minutes since midnight."""

    start: int
    end: int
    people: int
    equipment: frozenset[str]
    accessible: bool


def read_request(text: str) -> Request:
    """Parse a request for a room; the defaults are 9:00, one hour and one person."""
    text = text.lower()
    times = [_minutes(*match) for match in re.findall(_TIME, text)]
    start = times[0] if times else 9 * 60
    if len(times) > 1:
        end = times[1]
    elif length := re.search(r"for (\d+) minutes", text):
        end = start + int(length[1])
    elif length := re.search(r"for (\d+(?:\.\d+)?) hours?", text):
        end = start + round(float(length[1]) * 60)
    else:
        end = start + 60
    people = re.search(r"(\d+) (?:people|of us|attendees|guests|persons)", text)
    return Request(
        start,
        end,
        int(people[1]) if people else 1,
        frozenset(item for item, word in _EQUIPMENT.items() if re.search(word, text)),
        re.search(r"wheelchair|step-free|accessible", text) is not None,
    )


def resolve_day(request: str, instructions: str) -> date | None:
    """Return the requested day; None if it is relative to today and today's date is unknown."""
    request = request.lower()
    if named := re.search(r"\d{4}-\d\d-\d\d", request):
        return date.fromisoformat(named[0])
    told = re.search(r"\d{4}-\d\d-\d\d", instructions)
    if told is None:
        return None
    today = date.fromisoformat(told[0])
    if "tomorrow" in request:
        return today + timedelta(days=1)
    if ahead := re.search(r"in (\d+) days", request):
        return today + timedelta(days=int(ahead[1]))
    for number, name in enumerate(_WEEKDAYS):
        if name in request:
            return today + timedelta(days=(number - today.weekday() - 1) % 7 + 1)
    return today


def book(
    instructions: str, request: str, rooms: Sequence[dict[str, Any]], *, seed: int, slip: float
) -> str:
    """Answer a request, given the rooms as the tool listed them.

    Args:
        instructions: The system prompt.
        request: The user's message.
        rooms: Each has ``id``, ``capacity``, ``equipment``, ``accessible`` and ``booked``, a list
            of ``[start, end]`` as ``HH:MM``.
        seed: Seed of the slips, together with the texts.
        slip: Probability that the model forgets a rule, per rule.
    """
    dice = Random(f"{seed}|{instructions}|{request}")
    told = followed(instructions)
    rules = {rule.name for rule in RULES if rule.name in told and dice.random() >= slip}
    fitting = _filter(rooms, read_request(request), rules)
    if not fitting and "no room" in rules:
        return "No Room"
    # No room fits, and the instructions do not cover this case: offer some room anyway.
    chosen = _choose(fitting or list(rooms), rules)
    if "answer format" in rules:
        return chosen
    others = [room["id"] for room in rooms if room["id"] != chosen]
    if others and dice.random() < 0.4:
        return f"I suggest {chosen}, but {dice.choice(others)} might be worth a look as well."
    return f"Room {chosen} looks good for your meeting."


def _filter(
    rooms: Sequence[dict[str, Any]], request: Request, rules: set[str]
) -> list[dict[str, Any]]:
    """Keep the rooms that pass every check in the instructions."""

    def passes(room: dict[str, Any]) -> bool:
        taken = [(_parse(start), _parse(end)) for start, end in room["booked"]]
        checks = {
            "capacity": room["capacity"] >= request.people,
            "equipment": request.equipment <= set(room["equipment"]),
            "accessible": room["accessible"] or not request.accessible,
            "free at the start": not any(s <= request.start < e for s, e in taken),
            "free to the end": not any(s < request.end and request.start < e for s, e in taken),
        }
        return all(passed for name, passed in checks.items() if name in rules)

    return [room for room in rooms if passes(room)]


def _choose(rooms: Sequence[dict[str, Any]], rules: set[str]) -> str:
    """Choose a room: the first one, unless the instructions state a preference."""
    if "smallest" not in rules:
        return rooms[0]["id"]
    least = min(room["capacity"] for room in rooms)
    smallest = [room["id"] for room in rooms if room["capacity"] == least]
    return min(smallest) if "ties" in rules else smallest[0]


def _minutes(hour: str, minute: str, half: str) -> int:
    return (int(hour) % 12 + 12 * (half == "p") if half else int(hour)) * 60 + int(minute)


def _parse(clock: str) -> int:
    hour, minute = clock.split(":")
    return int(hour) * 60 + int(minute)
