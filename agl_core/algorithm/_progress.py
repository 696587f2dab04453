"""Progress of long work: bars in a terminal, a log line every few seconds elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from agl_core.logs import error_console

if TYPE_CHECKING:
    from rich.progress import Progress

logger = logging.getLogger(__name__)

_LINE_INTERVAL = 10.0  # seconds between two plain lines
_LEAST = 8  # columns of a bar or a text in a narrow terminal
_COUNT = 9  # columns of "1000/1000"
_COUNT_AND_TIME = 1 + _COUNT + 7 + 5  # spinner, count, time and the blanks between six columns


class ProgressReporter(Protocol):
    """Updates a progress display; returned by :func:`show_progress`."""

    def update(self, done: int, note: str = "") -> None:
        """Show the total that is done so far, and a note."""
        ...


@contextmanager
def show_progress(description: str, total: int) -> Generator[ProgressReporter]:
    """Show the progress of a piece of work while the context is open.

    Contexts may overlap, in one thread and in several; each gets a separate line.

    Args:
        description: Name of the work.
        total: Number of steps.
    """
    if not sys.stderr.isatty():
        yield _Lines(description, total)
        return
    with _bars.shared() as bars:
        task = bars.add_task(description, total=total, note="")
        try:
            yield _Bar(bars, task)
        finally:
            bars.refresh()  # rich redraws at intervals and may not have shown the last step
            bars.remove_task(task)


class _Lines:
    def __init__(self, description: str, total: int) -> None:
        self._description = description
        self._total = total
        self._told = time.monotonic()

    def update(self, done: int, note: str = "") -> None:
        now = time.monotonic()
        if done >= self._total or now - self._told >= _LINE_INTERVAL:
            self._told = now
            logger.info("%s: %d/%d %s", self._description, done, self._total, note)


class _Bar:
    def __init__(self, bars: Progress, task: int) -> None:
        self._bars = bars
        self._task = task

    def update(self, done: int, note: str = "") -> None:
        from rich.progress import TaskID

        self._bars.update(TaskID(self._task), completed=done, note=note)


class _SharedBars:
    """One live display for all progress of the process; a terminal has room for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._bars: Progress | None = None

    @contextmanager
    def shared(self) -> Generator[Progress]:
        with self._lock:
            if self._bars is None:
                self._bars = _make_bars()
                self._bars.start()
            self._users += 1
            bars = self._bars
        try:
            yield bars
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    bars.stop()
                    self._bars = None


def _make_bars() -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column

    console = error_console()

    def text(content: str, width: int) -> TextColumn:
        cut = Column(no_wrap=True, overflow="ellipsis", max_width=width)
        return TextColumn(content, table_column=cut)

    # Texts are cut so that bar, count and time are always whole: rich would drop those instead.
    name, bar = max(_LEAST, console.width // 4), max(_LEAST, min(40, console.width // 6))
    note = max(_LEAST, console.width - name - bar - _COUNT_AND_TIME)
    return Progress(
        SpinnerColumn(),
        text("{task.description}", name),
        BarColumn(bar_width=bar),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=_COUNT)),
        TimeElapsedColumn(),
        text("{task.fields[note]}", note),
        console=console,
        transient=True,
    )


_bars = _SharedBars()
