"""The task generator and the solver, checked by brute force that shares no code with them."""

from __future__ import annotations

import json
from datetime import date
from functools import cache

import pytest
from hypothesis import given, strategies as st

from solver import explain, grade, solve
from tasks import EQUIPMENT, ROOMS, Booking, BookingTask, Needs, generate, make_splits

COUNT = 400
BY_ID = {room.id: room for room in ROOMS}


@cache
def many_tasks() -> list[BookingTask]:
    return generate(COUNT, seed=7)


def minute_by_minute(room_id: str, task: BookingTask) -> bool:
    """Return whether a room is suitable, by checking every minute of the meeting."""
    room, needs = BY_ID[room_id], task.needs
    taken = {
        minute
        for booking in task.bookings
        if (booking.room, booking.day) == (room_id, needs.day)
        for minute in range(booking.start, booking.end)
    }
    return not (
        taken & set(range(needs.start, needs.end))
        or set(needs.equipment) - set(room.equipment)
        or (needs.accessible and not room.accessible)
        or needs.attendees > room.capacity
    )


def check_against_brute_force(task: BookingTask) -> None:
    fitting = sorted((BY_ID[i].capacity, i) for i in BY_ID if minute_by_minute(i, task))
    assert solve(task) == (fitting[0][1] if fitting else None)


days = st.dates(date(2026, 1, 1), date(2026, 1, 3))
spans = st.tuples(st.integers(480, 1079), st.integers(1, 240)).map(lambda t: (t[0], sum(t)))


@given(
    spans,
    days,
    st.integers(1, 32),
    st.sets(st.sampled_from(sorted(EQUIPMENT))),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(sorted(BY_ID)), days, spans), max_size=40),
)
def test_answer_is_suitable_and_minimal(span, day, attendees, equipment, accessible, taken):
    needs = Needs(
        day=day,
        start=span[0],
        end=span[1],
        attendees=attendees,
        equipment=sorted(equipment),
        accessible=accessible,
    )
    bookings = [Booking(room=r, day=d, start=s, end=e) for r, d, (s, e) in taken]
    task = BookingTask(task_id="t", today=day, request="", needs=needs, bookings=bookings)
    check_against_brute_force(task)


def test_answers_of_generated_tasks():
    for task in many_tasks():
        check_against_brute_force(task)


def test_bookings_that_only_touch_do_not_clash():
    needs = Needs(
        day=date(2026, 1, 1), start=600, end=660, attendees=4, equipment=[], accessible=True
    )
    task = BookingTask(task_id="t", today=needs.day, request="", needs=needs, bookings=[])
    assert solve(task) == "R05"  # the one accessible room with four seats
    for start, end, free in [(540, 600, True), (660, 700, True), (659, 700, False)]:
        task.bookings = [Booking(room="R05", day=needs.day, start=start, end=end)]
        assert (solve(task) == "R05") is free


def test_generator_is_seeded_and_varied():
    assert generate(30, seed=3) == generate(30, seed=3)
    assert generate(30, seed=3) != generate(30, seed=4)
    answers = [solve(task) for task in many_tasks()]
    assert set(answers) == {None, *BY_ID}
    assert 0.1 < answers.count(None) / COUNT < 0.3
    for task in many_tasks():
        assert 480 <= task.needs.start < task.needs.end <= 1080
        assert task.needs.day >= task.today


def test_splits_are_disjoint_json():
    splits = make_splits()
    rows = [row for split in splits for row in split]
    assert len(rows) >= 200
    assert len({row["task_id"] for row in rows}) == len(rows)
    assert len({row["request"] for row in rows}) == len(rows)
    assert json.loads(json.dumps(splits)) == [list(split) for split in splits]
    assert not {"answer", "room", "expected"} & set(rows[0])


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("R01", 1.0),
        ("I took R01, it is R01.", 1.0),
        ("R02", 0.0),
        ("No Room", 0.0),
        ("", 0.0),
        ("R01 or R02", 0.0),
        ("R01, no room else", 0.0),
    ],
)
def test_grade_of_a_task_with_a_room(text: str, reward: float):
    task = next(task for task in many_tasks() if solve(task) == "R01")
    assert grade(task, text)[0] == reward


def test_grade_of_a_task_without_a_room():
    task = next(task for task in many_tasks() if solve(task) is None)
    assert grade(task, "No room.") == (1.0, "Correct.")
    reward, feedback = grade(task, "R01")
    assert reward == 0.0
    assert feedback.endswith("No room was suitable, and the answer should have said so.")


def test_feedback_names_a_fault_and_never_the_answer():
    for task in many_tasks()[:100]:
        right = solve(task)
        for room in ROOMS:
            feedback = explain(task, room.id)
            assert (feedback == "Correct.") is (room.id == right)
            assert right is None or room.id == right or right not in feedback
            if feedback.startswith(f"Wrong: {room.id} is suitable"):
                assert minute_by_minute(room.id, task)
            elif "ties" in feedback:
                assert right is not None
                assert BY_ID[right].capacity == room.capacity
