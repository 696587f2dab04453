"""Progress of long work: a log line every few seconds, or what a plugin shows in a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from agl_core.errors import PluginError
from agl_core.plugins import get_registry

logger = logging.getLogger(__name__)

_LINE_INTERVAL = 10.0  # seconds between two lines


class ProgressReporter(Protocol):
    """Updates a progress display; returned by :func:`show_progress`."""

    def update(self, done: int, note: str = "") -> None:
        """Show how many steps are done so far, and a note."""
        ...


Show = Callable[[str, int], AbstractContextManager[ProgressReporter]]


@contextmanager
def show_progress(description: str, total: int) -> Generator[ProgressReporter]:
    """Show the progress of a piece of work while the context is open.

    In a terminal an installed plugin of the kind ``progress`` shows it; without one, and elsewhere,
    it is logged. Contexts may overlap, in one thread and in several; each gets a separate line.

    Args:
        description: Name of the work.
        total: Number of steps.
    """
    show = _of_plugin() if sys.stderr.isatty() else None
    if show is None:
        yield _Lines(description, total)
        return
    with show(description, total) as reporter:
        yield reporter


def _of_plugin() -> Show | None:
    """Return the function of the first plugin that can be loaded; plugins are tried by name."""
    registry = get_registry()
    for record in registry.usable("progress"):
        try:
            return registry.load(record).resolve(record)
        except PluginError as error:
            logger.warning("progress is not shown by %s: %s", record.key, error)
    return None


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
