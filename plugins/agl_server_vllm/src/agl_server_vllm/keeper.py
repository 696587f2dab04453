"""Runs a command and sees to it that nothing of it outlives whoever wanted it.

A process of its own between agl and vLLM, because only another process can act when agl is killed.
It ends vLLM, with all that vLLM has started, when

* it is told to (SIGTERM, SIGINT),
* the process that it works for is gone, in whatever way, or
* vLLM itself has ended and left something behind.

Usage: ``keeper.py OWNER GRACE COMMAND...``, where OWNER is the process id of whom it works for and
GRACE the seconds between asking and killing. It writes the command's process id on its standard
output, and exits as the command did. Its standard input is a pipe whose other end the owner holds;
the end of the pipe means the end of the owner where the system tells in no better way.

Run by path and isolated: this file may import nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36
_NO_CHILDREN_SECONDS = 10.0  # longest wait for killed processes to be gone


def main(arguments: list[str]) -> int:
    """Keep a command until it ends or is to be ended; return its exit code, or 128 + signal."""
    owner, grace, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    wakeups, wake = socket.socketpair()
    wakeups.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: told.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only to be woken
    prctl = _prctl()
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of the command become children of ours
    child = subprocess.Popen(  # noqa: S603 -- what the owner wants to be run
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,  # ours is for the process id
        start_new_session=True,
        # If this very process is killed, the command is told to end. No thread runs here.
        preexec_fn=_end_with_parent(prctl),
    )
    os.write(1, f"{child.pid}\n".encode())
    with selectors.DefaultSelector() as selector:
        selector.register(wakeups, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)  # ends with the owner's end of the pipe
        owner_fd = _watch(owner)
        if owner_fd is not None:
            selector.register(owner_fd, selectors.EVENT_READ)
        # The owner may have gone before it could be watched.
        owner_gone = os.getppid() != owner
        while not told and not owner_gone and child.poll() is None:
            ready = {key.fd for key, _ in selector.select()}
            if wakeups.fileno() in ready:
                wakeups.recv(4096)
            owner_gone = bool(ready & {0, owner_fd})
    _end(child, grace)
    code = child.returncode
    return code if code >= 0 else 128 - code


def _end(child: subprocess.Popen[Any], grace: float) -> None:
    """End the command's process group: ask, wait, kill; then whatever left the group."""
    _signal_group(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(grace)
    _signal_group(child.pid, signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + _NO_CHILDREN_SECONDS
    # Killing a process hands its children on to us, so once is not enough.
    while _reap() and time.monotonic() < deadline:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)  # no system call waits for children that are yet to be handed on


def _reap() -> bool:
    """Collect children that have ended; return whether there are more."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    """Return the process ids of our children, where the system tells them (Linux)."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # all of it has ended
    except PermissionError:
        return  # macOS says so of a group of which only zombies are left


def _watch(pid: int) -> int | None:
    """Return a file descriptor that becomes readable when a process ends, where there is such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _prctl() -> Callable[[int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return ctypes.CDLL(None, use_errno=True).prctl


def _end_with_parent(prctl: Callable[[int, int], int] | None) -> Callable[[], None] | None:
    if prctl is None:
        return None

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return end_with_parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
