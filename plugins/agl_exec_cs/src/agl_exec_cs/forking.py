"""Safe forks while other threads import modules.

A thread that imports a module holds the lock of that module. A child forked at that moment inherits
the locked lock without the thread, so its own import of the module blocks forever. Python resets
only the global import lock after a fork. The thread that watches the children forks replacements
while the main thread runs the algorithm, which may import lazily.
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

_LONGEST_WAIT: Final = 2.0  # seconds; a program may run its whole main() inside an import

_thread = threading.local()


@contextmanager
def between_imports() -> Generator[None]:
    """Make forks of this thread wait until no other thread is importing."""
    _thread.waits = True
    try:
        yield
    finally:
        _thread.waits = False


def _wait() -> None:
    if not getattr(_thread, "waits", False):
        return
    deadline = time.monotonic() + _LONGEST_WAIT
    while _others_import() and time.monotonic() < deadline:
        time.sleep(0.0005)  # Python has no event for the end of an import


def _others_import() -> bool:
    # The table has the locks that a thread holds or waits for. It has no public interface.
    bootstrap: Any = vars(importlib)["_bootstrap"]
    locks = [reference() for reference in list(bootstrap._module_locks.values())]
    me = threading.get_ident()
    return any(
        lock is not None and getattr(lock, "owner", None) not in (None, me) for lock in locks
    )


if hasattr(os, "register_at_fork"):
    # Called just before the fork; a check any earlier could be out of date by then.
    os.register_at_fork(before=_wait)
