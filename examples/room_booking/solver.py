"""Computes the right answer to a task, grades answers, and explains wrong ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tasks import ROOMS, BookingTask, Room, clock

__all__ = ["explain", "grade", "solve", "suitable"]


def solve(task: BookingTask) -> str | None:
    """Return the smallest suitable room, ties by id; None if no room is suitable."""
    fitting = [room for room in ROOMS if suitable(room, task)]
    return min(fitting, key=lambda room: (room.capacity, room.id)).id if fitting else None


def suitable(room: Room, task: BookingTask) -> bool:
    """Return whether a room has the seats and the equipment, and is free for the whole meeting."""
    return next(_objections(room, task), None) is None


def grade(task: BookingTask, text: str) -> tuple[float, str]:
    """Return 1.0 or 0.0 for an agent's answer, and the feedback that a user would give.

    The answer counts if it names exactly one room, or says "No Room" and names none.
    """
    named = set(re.findall(r"\bR\d\d\b", text))
    says_none = re.search(r"\bno room\b", text, re.IGNORECASE) is not None
    if len(named) + says_none > 1:
        return 0.0, "Wrong: the answer names several rooms."
    if not named and not says_none:
        return 0.0, "Wrong: the answer names no room."
    answer = named.pop() if named else None
    return float(answer == solve(task)), explain(task, answer)


def explain(task: BookingTask, answer: str | None) -> str:
    """Return one sentence about what is right or wrong in an answer; None means "no room".

    The sentence names a fault but never the right room, as a user's complaint would.
    """
    right = solve(task)
    if answer == right:
        return "Correct."
    if answer is None:
        return "Wrong: there was a suitable room."
    room = next((room for room in ROOMS if room.id == answer), None)
    if room is None:
        return f"Wrong: there is no room {answer}."
    fault = next(_objections(room, task), None)
    if fault is not None:
        return f"Wrong: {fault}" + (
            " No room was suitable, and the answer should have said so." if right is None else ""
        )
    best = next(room for room in ROOMS if room.id == right)
    if best.capacity < room.capacity:
        return f"Wrong: {answer} is suitable, but a smaller room is as well."
    return f"Wrong: {answer} ties with a suitable room of the same size that has a lower id."


def _objections(room: Room, task: BookingTask) -> Iterator[str]:
    """Yield the faults of a room, the most obvious first."""
    needs = task.needs
    if room.capacity < needs.attendees:
        yield f"{room.id} has a capacity of {room.capacity}, and {needs.attendees} people attend."
    if missing := [item for item in needs.equipment if item not in room.equipment]:
        yield f"{room.id} lacks equipment: {', '.join(missing)}."
    if needs.accessible and not room.accessible:
        yield f"{room.id} is not accessible with a wheelchair."
    for taken in task.bookings:
        same_place = taken.room == room.id and taken.day == needs.day
        if same_place and taken.start < needs.end and needs.start < taken.end:
            yield (
                f"{room.id} is not available: a booking from {clock(taken.start)} to "
                f"{clock(taken.end)} overlaps {clock(needs.start)} to {clock(needs.end)}."
            )
