"""Starts processes, and looks at those that may end while they are looked at."""

from __future__ import annotations

import os

import psutil


def unmeasured() -> dict[str, str]:
    """Return the environment of a child whose time or modules count, without coverage in it."""
    return {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE_")}


def is_running(process: psutil.Process | int) -> bool:
    """Tell whether a process runs. A zombie has ended; nobody has reaped it yet."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def running_below(word: str, parent: int | None = None) -> list[psutil.Process]:
    """Return a process's descendants that have a word in their command line.

    Args:
        word: The word.
        parent: The id of the process; None is this one.
    """
    found: list[psutil.Process] = []
    for process in psutil.Process(parent).children(recursive=True):
        try:
            if word in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
