"""The processes below this one, which a component may have started. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["children", "command_of", "still_running"]


def children() -> set[int]:
    """Return the processes below this one, without the helpers that Python keeps for later.

    Empty on a system without ``/proc``.
    """
    parents = _parents()
    below: set[int] = set()
    level = {os.getpid()}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        below |= level
    helpers = ("resource_tracker", "forkserver")
    return {pid for pid in below if not any(name in command_of(pid) for name in helpers)}


def still_running(pids: Iterable[int]) -> set[int]:
    """Return those processes that run, wherever they are: who lost its parent is no child."""
    return _parents().keys() & set(pids)


def command_of(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def _parents() -> dict[int, int]:
    """Return the parent of each process that has not ended."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The name in parentheses may hold spaces.
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
    return parents
