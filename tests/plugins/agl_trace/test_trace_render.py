"""Rows as lines: columns, guides, bars, and the maximum width."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

from agl_trace import SpanRow, Style, TraceSummary, TraceView, render_trace
from agl_trace.render import duration, token_count


def view(*rows: SpanRow, seconds: float = 10.0) -> TraceView:
    return TraceView(rows, TraceSummary(len(rows), seconds, 0, 0, 0, None, 0, 0))


def row(depth: int, name: str, start: float = 0, seconds: float = 10, **more: Any) -> SpanRow:
    return SpanRow("id", None, depth, name, start=start, seconds=seconds, **more)


TRACE = view(
    row(0, "agent", agent="planner", kind="agent"),
    row(1, "chat", 0, 4, kind="model", model="m", input_tokens=312, output_tokens=24, last=False),
    row(1, "search", 4, 2, last=False, kind="tool", error="TimeoutError: late"),
    row(2, "http", 4, 1),
    row(1, "reward", 10, 0, kind="reward", reward=0.5, rewards={"a": 0.5, "b": 1.0}),
)


def lines(width: int, **style: Any) -> list[str]:
    return list(render_trace(TRACE, Style(width=width, **style)))


def test_a_wide_terminal_shows_all_columns():
    assert lines(66) == [
        "span             0            10.00 s      time     tokens  reward",
        "agent · planner  ━━━━━━━━━━━━━━━━━━━━   10.00 s",
        "├─ chat · m      ━━━━━━━━                4.00 s     312+24",
        "├─ search                ━━━━            2.00 s",
        "│    ✗ TimeoutError: late",
        "│  └─ http               ━━              1.00 s",
        "└─ reward                           •      0 ms                0.5",
        "     a 0.5, b 1",
    ]


def test_a_narrow_terminal_does_without_bars_and_then_without_tokens():
    assert "━" not in "".join(lines(50))
    assert any(line.endswith("312+24") for line in lines(50))
    assert "312" not in "".join(lines(34))
    assert lines(34)[1].split() == ["agent", "·", "planner", "10.00", "s"]


def test_ascii_terminals():
    text = "\n".join(lines(70, unicode=False))
    assert text.isascii()
    assert "|- search" in text
    assert "! TimeoutError: late" in text
    assert "====" in text


def test_colours_are_only_added():
    plain, colored = lines(70), lines(70, color=True)
    assert [re.sub("\x1b\\[[0-9;]*m", "", line) for line in colored] == plain
    (error,) = [line for line in colored if "✗" in line]
    assert error.startswith("\x1b[31m")


def test_folding_shows_the_number_of_folded_spans():
    folded = list(render_trace(TRACE, Style(), depth=0))
    assert len(folded) == 2
    assert folded[1].startswith("agent · planner (+4)")
    assert [
        line.split()[1:3] for line in render_trace(TRACE, Style(), depth=1) if "search" in line
    ] == [["search", "(+1)"]]


def test_operations_go_by_their_own_names_and_messages_are_quoted():
    trace = view(
        row(0, "agentlightning.operation", operation="chat", model="m"),
        row(0, "agentlightning.message", text="the room is too small"),
    )
    (_, first, _, third) = render_trace(trace, Style())
    assert first.startswith("chat · m ")
    assert third.strip() == "the room is too small"


def test_bars_are_in_proportion_and_never_empty():
    trace = view(row(0, "all"), row(1, "half", 5, 5), row(1, "blink", 9.999, 0.0001), row(1, "?"))
    trace.rows[3].start = None
    bars = [line[17:] for line in render_trace(trace, Style(width=47))][1:]
    assert [(bar.find("━"), bar.count("━")) for bar in bars] == [
        (0, 20),
        (10, 10),
        (19, 1),
        (-1, 0),
    ]


def test_names_cannot_move_the_cursor():
    (_, line) = render_trace(view(row(0, "a\x1b[2J\nb\u202ec\td")), Style())
    assert line.startswith("a?[2J b?c d ")


def test_deep_rows_show_their_depth():
    trace = view(*(row(depth, f"level {depth}") for depth in range(40)))
    found = list(render_trace(trace, Style(width=80)))
    assert found[1].startswith("level 0")
    assert found[40].startswith("⋯39 └─ level 39 ")


names = st.text(st.characters(codec="utf-8"), max_size=30)


@given(
    st.lists(
        st.builds(
            SpanRow,
            st.just("id"),
            st.none(),
            st.integers(0, 30),
            names,
            start=st.none() | st.floats(0, 1e6),
            seconds=st.none() | st.floats(0, 1e6),
            model=st.none() | names,
            input_tokens=st.none() | st.integers(0, 10**12),
            reward=st.none() | st.floats(),
            error=st.none() | names,
            last=st.booleans(),
        ),
        max_size=6,
    ),
    st.integers(24, 200),
    st.booleans(),
)
def test_no_line_is_wider_than_the_terminal(rows, width, unicode):
    style = Style(width=width, unicode=unicode)
    for line in render_trace(view(*rows, seconds=2e6), style):
        assert cell_len(line) <= width
        assert line.isprintable()
        assert unicode or line.isascii()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0004, "0.4 ms"),
        (0.25, "250 ms"),
        (0.9996, "1.00 s"),
        (59.99, "59.99 s"),
        (59.996, "1m 00s"),
        (3599.4, "59m 59s"),
        (3599.6, "1h 00m"),
        (86_400 * 30, "720h 00m"),
        (86_400 * 1e4, "10000 d"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (9999, "9999"),
        (10_000, "10k"),
        (123_456, "123k"),
        (999_600, "1M"),
        (10**10, "10G"),
    ],
)
def test_token_counts(count, text):
    assert token_count(count) == text
