"""Progress is a bar in a terminal; bars and log lines share one display."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from agl_cli_kit import error_console, progress, setup_module_logging
from agl_core.algorithm import show_progress


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


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_texts_hide_no_bar_count_or_time(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    drawn = Console(file=io.StringIO(), width=width, height=24, legacy_windows=False)
    monkeypatch.setattr(progress, "error_console", lambda: drawn)
    bars = progress._make_bars()
    long = "round 12: measuring v34 on the validation tasks"
    bars.add_task(long, total=1000, completed=500, note="0.917, 12 failed, 3 not scored, 4 running")
    drawn.print(bars.get_renderable())
    (line,) = drawn.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(line.rstrip()) <= width
    for part in ("round 12", "━━", "500/1000", "0:00:00", "0.917"):
        assert part in line
