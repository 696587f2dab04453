"""Progress is a bar in a terminal and a log line every few seconds elsewhere."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from agl_core.algorithm import _progress, show_progress
from agl_core.logs import error_console, setup_module_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_share_one_display(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with show_progress("outer", 4) as outer:
        outer.update(1)
        with show_progress("inner", 2) as inner:
            inner.update(2)
        outer.update(4, "(a note)")
    with show_progress("later", 1) as later:
        later.update(1)
    shown = terminal.getvalue()
    for text in ("outer", "4/4", "(a note)", "inner", "2/2", "later", "1/1"):
        assert text in shown
    hidden_cursor = "\x1b[?25l"  # once for each display
    assert shown.count(hidden_cursor) == 2, "the later bar has one of its own"


def test_log_lines_and_tables_use_the_console_of_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    console = error_console()
    assert not console._live_stack
    with show_progress("work", 2):
        assert error_console() is console
        assert console._live_stack  # so that what it prints goes above the bars
    logger = setup_module_logging(name="a_test_of_consoles")
    handler: Any = logger.handlers[0]
    assert handler.console is console


def test_lines_are_logged_at_intervals_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    clock = [0.0]
    monkeypatch.setattr("agl_core.algorithm._progress.time.monotonic", lambda: clock[0])
    with (
        caplog.at_level("INFO", logger="agl_core.algorithm"),
        show_progress("work", 100) as progress,
    ):
        for done in range(1, 101):
            clock[0] += 0.5
            progress.update(done)
    lines = [record.getMessage().strip() for record in caplog.records]
    assert lines == [f"work: {n}/100" for n in (20, 40, 60, 80, 100)]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_texts_hide_no_bar_count_or_time(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    drawn = Console(file=io.StringIO(), width=width, height=24, legacy_windows=False)
    monkeypatch.setattr(_progress, "error_console", lambda: drawn)
    bars = _progress._make_bars()
    long = "round 12: measuring v34 on the validation tasks"
    bars.add_task(long, total=1000, completed=500, note="0.917, 12 failed, 3 not scored, 4 running")
    drawn.print(bars.get_renderable())
    (line,) = drawn.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(line.rstrip()) <= width
    for part in ("round 12", "━━", "500/1000", "0:00:00", "0.917"):
        assert part in line
