"""Ends a child process when its parent has ended, killed or not.

The sentinel of :mod:`multiprocessing` cannot be used: with the start method ``fork`` it is a pipe
whose other end the later children hold too, so that children would notice the end of the parent one
after the other.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait as wait_for_connections
from typing import Final

import psutil

from agl_exec_cs.leftovers import Leftovers

__all__ = ["end_with_parent"]

logger = logging.getLogger(__name__)

_GRACE: Final = 0.7
"""Seconds from the parent's end to the end of this process by force."""
_CLEANUP: Final = 0.6
"""Longest time to end this process's own children, in seconds."""
_LOOK: Final = 0.25  # seconds between two looks at the parent, where nothing announces its end
_ORPHANED: Final = 1  # exit code


def end_with_parent(stop: Callable[[], None], leftovers: Leftovers) -> None:
    """Watch the parent process in a thread.

    Args:
        stop: Called when the parent has ended. The process is ended by force soon after.
        leftovers: Processes and threads that agents leave behind in this process.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return

    def watch(pid: int, sentinel: int) -> None:
        _wait_for_end(pid, sentinel)
        _thread(_end, leftovers)
        stop()
        logger.warning("The parent process of %s is gone; stopping", leftovers.name)

    _thread(watch, parent.pid, parent.sentinel)


def _end(leftovers: Leftovers) -> None:
    time.sleep(_GRACE)
    # The log may be a pipe whose reader is gone: it must not delay the exit.
    _thread(leftovers.end_processes, os.getpid(), _CLEANUP / 2).join(_CLEANUP)
    os._exit(_ORPHANED)


def _wait_for_end(pid: int, sentinel: int) -> None:
    if sys.platform == "win32":
        wait_for_connections([sentinel])  # a handle of the process
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or its kernel is old or restricted
        _poll(pid)
        return
    wait_for_connections([descriptor])
    os.close(descriptor)


def _poll(pid: int) -> None:
    is_own_parent = os.getppid() == pid  # with forkserver it is not
    while os.getppid() == pid if is_own_parent else psutil.pid_exists(pid):
        time.sleep(_LOOK)


def _thread(target: Callable[..., object], *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name="agl-orphan", daemon=True)
    thread.start()
    return thread
