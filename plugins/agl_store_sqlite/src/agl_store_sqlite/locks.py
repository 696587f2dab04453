"""Locks that tell whether another store has a file open.

Each store holds a shared lock on the log beside its file while it is open; a store that wants the
file alone asks for the exclusive one. The locks are those of ``flock``, which belong to one
descriptor, so two stores of one process see each other, too. SQLite takes none on the log.

Windows has no ``flock``: there each store takes itself for the only one.
"""

from __future__ import annotations

import logging
import sys

if sys.platform != "win32":
    import fcntl

__all__ = ["share", "take_alone"]

logger = logging.getLogger(__name__)


def share(log: int, path: str) -> None:
    """Lock the log as one of several stores; wait while another has it alone.

    Args:
        log: Descriptor of the log.
        path: The database file, for the log message.

    Raises:
        OSError: The file system has no such locks.
    """
    if sys.platform != "win32":
        try:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("%s is being shrunk by another store; waiting for it", path)
            fcntl.flock(log, fcntl.LOCK_SH)


def take_alone(log: int) -> bool:
    """Lock the log exclusively; return False if another store has the file open."""
    if sys.platform != "win32":
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
