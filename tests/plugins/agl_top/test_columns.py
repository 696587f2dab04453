"""Lists in terminals of different widths."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from agl_top.columns import draw_table, fit_widths

ROLLOUTS = ("rollout", "status", "attempt", "reward", "took", "task")
ROWS = [
    ["ro-1a2b3c4d5e6f", "succeeded", "1", "0.500", "12.3 s", "question: " + "free at ten? " * 14],
    ["ro-2a2b3c4d5e6f", "requeuing", "2", "-", "1 m 05 s", "x" * 200],
]


def drawn(width: int, height: int = 24) -> list[str]:
    out = io.StringIO()
    table = draw_table(ROLLOUTS, ROWS, width=width, height=height)
    Console(width=width, file=out).print(table)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_long_task_hides_no_other_column(width: int) -> None:
    head, *rows = drawn(width)
    assert head.split() == list(ROLLOUTS)
    assert len(rows) == 2
    for row, given_row in zip(rows, ROWS, strict=True):
        for cell in given_row[:-1]:
            assert cell in row
        assert given_row[-1][:20] in row
        assert row.rstrip().endswith("…")
        assert len(row) <= width


def test_a_list_is_no_longer_than_the_terminal() -> None:
    assert len(drawn(80, height=2)) == 2


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), st.integers(20, 250))
def test_widths_use_the_room_and_short_columns_stay_whole(wanted: list[int], room: int) -> None:
    fitted = fit_widths(wanted, room)
    assert sum(fitted) <= max(room, len(wanted))
    assert all(have <= want for have, want in zip(fitted, wanted, strict=True))
    if sum(wanted) <= room:
        assert fitted == wanted
    elif sum(min(want, 16) for want in wanted) <= room:
        assert sum(fitted) == room
        assert all(have >= min(want, 16) for have, want in zip(fitted, wanted, strict=True))
