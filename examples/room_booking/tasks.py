"""Generates tasks: requests for meeting rooms in plain English, from a seed.

A task holds the agent's input (today's date and the request), the data of its tool (the bookings),
and the meaning of the request (``needs``, for the solver). It does not hold the right room, which
:mod:`solver` computes.

    python examples/room_booking/tasks.py      # print a few tasks with their answers
"""

from __future__ import annotations

from datetime import date, timedelta
from random import Random
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

__all__ = [
    "EQUIPMENT",
    "ROOMS",
    "Booking",
    "BookingTask",
    "Equipment",
    "Needs",
    "Room",
    "Splits",
    "clock",
    "generate",
    "held_out_tasks",
    "make_splits",
    "train_tasks",
    "val_tasks",
]

Equipment = Literal["projector", "whiteboard", "video", "phone"]
EQUIPMENT: dict[Equipment, str] = {
    "projector": "a projector",
    "whiteboard": "a whiteboard",
    "video": "video conferencing",
    "phone": "a conference phone",
}


class Room(BaseModel):
    id: str
    capacity: int
    equipment: list[Equipment]
    accessible: bool


class Booking(BaseModel):
    """A room that is taken from ``start`` to ``end``, in minutes since midnight."""

    room: str
    day: date
    start: int
    end: int


class Needs(BaseModel):
    """Requirements of a request; ``start`` and ``end`` in minutes since midnight."""

    day: date
    start: int
    end: int
    attendees: int
    equipment: list[Equipment]
    accessible: bool


class BookingTask(BaseModel):
    task_id: str
    today: date
    request: str
    needs: Needs
    bookings: list[Booking]


class Splits(NamedTuple):
    """Disjoint sets of tasks, as JSON values."""

    train: list[dict[str, Any]]
    val: list[dict[str, Any]]
    test: list[dict[str, Any]]


def _room(room_id: str, capacity: int, equipment: str, accessible: bool = True) -> Room:
    return Room.model_validate(
        {
            "id": room_id,
            "capacity": capacity,
            "equipment": equipment.split(),
            "accessible": accessible,
        }
    )


# In the order of the tool's list: by floor, so that neither size nor id is sorted.
ROOMS = (
    _room("R07", 12, "projector video phone"),
    _room("R10", 6, "whiteboard video"),
    _room("R03", 20, "projector whiteboard video phone"),
    _room("R12", 8, "projector whiteboard", accessible=False),
    _room("R05", 4, "phone"),
    _room("R11", 12, "projector whiteboard video", accessible=False),
    _room("R01", 8, "projector whiteboard video"),
    _room("R08", 4, "whiteboard video", accessible=False),
    _room("R06", 30, "projector whiteboard video phone"),
    _room("R02", 6, "whiteboard video phone"),
    _room("R09", 10, "projector phone"),
    _room("R04", 12, "projector whiteboard phone"),
)

_OPENS, _CLOSES = 8 * 60, 18 * 60


def generate(count: int, seed: int) -> list[BookingTask]:
    """Make ``count`` tasks, no two alike; equal seeds make equal tasks."""
    rng = Random(seed)
    tasks: dict[str, BookingTask] = {}
    while len(tasks) < count:
        task = _make_task(rng, f"task-{seed}-{len(tasks):04d}")
        tasks.setdefault(task.request, task)
    return list(tasks.values())


def make_splits(seed: int = 7, train: int = 80, val: int = 48, test: int = 120) -> Splits:
    """Make the train, validation and held-out tasks; no request occurs in two of them."""
    rows = [task.model_dump(mode="json") for task in generate(train + val + test, seed)]
    return Splits(rows[:train], rows[train : train + val], rows[train + val :])


def train_tasks() -> list[dict[str, Any]]:
    """Return the training tasks, for train files."""
    return make_splits().train


def val_tasks() -> list[dict[str, Any]]:
    """Return the validation tasks, for train files."""
    return make_splits().val


def held_out_tasks() -> list[dict[str, Any]]:
    """Return the held-out tasks, for train files."""
    return make_splits().test


def clock(minutes: int) -> str:
    """Write minutes since midnight as ``HH:MM``."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _make_task(rng: Random, task_id: str) -> BookingTask:
    today = date(2026, 1, 5) + timedelta(days=rng.randrange(300))
    length = rng.choice([30, 45, 60, 60, 90, 120, 150])
    start = rng.randrange(_OPENS, _CLOSES - length + 1, 15)
    needs = Needs(
        day=today + timedelta(days=rng.randrange(15)),
        start=start,
        end=start + length,
        attendees=rng.choice([2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 8, 9, 10, 11, 12, 14, 18, 24]),
        equipment=sorted(rng.sample(sorted(EQUIPMENT), rng.choice([0, 0, 1, 1, 2]))),
        accessible=rng.random() < 0.3,
    )
    # From a quiet day to a day on which nearly every room is taken.
    crowd = rng.choice([0.1, 0.25, 0.4, 0.55, 0.8])
    bookings = [
        booking
        for room in ROOMS
        for day in (needs.day, today + timedelta(days=rng.randrange(15)))
        for booking in _make_bookings(rng, room.id, day, crowd)
    ]
    return BookingTask(
        task_id=task_id,
        today=today,
        request=_write_request(rng, today, needs),
        needs=needs,
        bookings=bookings,
    )


def _make_bookings(rng: Random, room: str, day: date, crowd: float) -> list[Booking]:
    """Fill a room's day from morning to evening; about ``crowd`` of it is taken."""
    bookings: list[Booking] = []
    at = _OPENS
    while at < _CLOSES:
        end = min(at + rng.choice([30, 60, 90, 120]), _CLOSES)
        if rng.random() < crowd:
            bookings.append(Booking(room=room, day=day, start=at, end=end))
        at = end
    return bookings


def _write_request(rng: Random, today: date, needs: Needs) -> str:
    """Write the requirements in English, in one of several wordings."""
    day = _write_day(rng, today, needs.day)
    start, length = _write_time(rng, needs.start), needs.end - needs.start
    when = rng.choice(
        [
            f"{day} at {start} for {_write_length(length)}",
            f"{day} from {start} to {_write_time(rng, needs.end)}",
        ]
    )
    people = needs.attendees
    sentences = [
        rng.choice(
            [
                f"Please book a room {when} for {people} people.",
                f"We need a place to meet {when}. There will be {people} of us.",
                f"Could you find a room {when}? {people} attendees are expected.",
            ]
        )
    ]
    if needs.equipment:
        wanted = " and ".join(EQUIPMENT[item] for item in needs.equipment)
        sentences.append(rng.choice([f"We need {wanted}.", f"It should have {wanted}."]))
    if needs.accessible:
        sentences.append(
            rng.choice(
                [
                    "One of us uses a wheelchair.",
                    "It has to be wheelchair accessible.",
                    "Step-free access is required.",
                ]
            )
        )
    return " ".join(sentences)


def _write_day(rng: Random, today: date, day: date) -> str:
    """Write a day, often relative to today: ``on Tuesday`` is the first Tuesday after today."""
    ahead = (day - today).days
    options = [f"on {day.isoformat()}"]
    if ahead == 0:
        options += ["today"] * 3
    elif ahead == 1:
        options += ["tomorrow"] * 3
    elif ahead <= 7:
        options += [f"on {day:%A}"] * 3
    else:
        options += [f"in {ahead} days"]
    return rng.choice(options)


def _write_time(rng: Random, minutes: int) -> str:
    hour, minute = divmod(minutes, 60)
    twelve = f"{(hour - 1) % 12 + 1}:{minute:02d} {'am' if hour < 12 else 'pm'}"
    return rng.choice([clock(minutes), twelve])


def _write_length(minutes: int) -> str:
    if minutes == 60:
        return "an hour"
    if minutes > 60 and minutes % 30 == 0:
        return f"{minutes / 60:g} hours"
    return f"{minutes} minutes"


if __name__ == "__main__":
    from solver import solve

    for shown in generate(8, seed=7):
        print(f"{shown.today}  {shown.request}\n            -> {solve(shown) or 'No Room'}")
