"""Progress bars in a terminal: the plugin ``progress.rich``."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agl_cli_kit.logs import error_console

if TYPE_CHECKING:
    from rich.progress import Progress

    from agl_core.algorithm import ProgressReporter

_LEAST = 8  # columns of a bar or a text in a narrow terminal
_COUNT = 9  # columns of "1000/1000"
_COUNT_AND_TIME = 1 + _COUNT + 7 + 5  # spinner, count, time and the blanks between six columns


@contextmanager
def show(description: str, total: int) -> Generator[ProgressReporter]:
    """Show a bar while the context is open; see :func:`agl_core.algorithm.show_progress`."""
    with _bars.shared() as bars:
        task = bars.add_task(description, total=total, note="")
        try:
            yield _Bar(bars, task)
        finally:
            bars.refresh()  # rich redraws at intervals and may not have shown the last step
            bars.remove_task(task)


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
