"""Forking beside threads that import.

A thread that imports a module holds that module's lock. A child forked at that moment has the lock
but not the thread, so its own import of the module waits for ever (Python resets only the lock of
the import system as a whole). A runner is replaced from the thread that watches the children, while
the main thread does whatever the algorithm does, lazy imports among it.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["between_imports"]

_PATIENCE: Final = 2.0
"""Seconds; a whole program may run inside an import of the main thread."""

_here = threading.local()


@contextmanager
def between_imports() -> Generator[None]:
    """Let this thread's forks wait until no other thread is in the middle of an import."""
    _here.waits = True
    try:
        yield
    finally:
        _here.waits = False


def _wait() -> None:
    if not getattr(_here, "waits", False):
        return
    deadline = time.monotonic() + _PATIENCE
    while _others_import() and time.monotonic() < deadline:
        time.sleep(0.0005)  # an import tells nobody that it has ended


def _others_import() -> bool:
    # The table has the locks that somebody holds or waits for. There is no public way to ask.
    bootstrap: Any = vars(importlib)["_bootstrap"]
    locks = [reference() for reference in list(bootstrap._module_locks.values())]
    me = threading.get_ident()
    return any(
        lock is not None and getattr(lock, "owner", None) not in (None, me) for lock in locks
    )


if hasattr(os, "register_at_fork"):
    # Just before the fork, where no other thread gets to run any more.
    os.register_at_fork(before=_wait)
