"""Keeper process: runs a command, and ends it with all its processes when its owner ends.

It is a process of its own between agl and vLLM, because only another process can act when agl is
killed. It ends vLLM and all processes that vLLM started when

* it receives SIGTERM, SIGINT or SIGHUP,
* its owner has ended, in whatever way, or
* vLLM itself has ended and left processes behind.

Usage: ``keeper.py OWNER GRACE COMMAND...``. OWNER is the owner's process id, GRACE the seconds
between SIGTERM and SIGKILL. The keeper writes the command's process id to its standard output and
exits with the command's code. Its standard input is a pipe that the owner holds open; on systems
without pidfd the end of the pipe shows the end of the owner.

It is run by path and isolated, so this file may import the standard library only.
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
_REAP_SECONDS = 10.0  # longest wait until killed processes have ended


def main(arguments: list[str]) -> int:
    """Run a command until it ends or must end; return its exit code, or 128 + signal."""
    owner, grace, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    wakeups, wake = socket.socketpair()
    wakeups.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: received.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # wakes select()
    prctl = _prctl()
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of the command become our children
    child = subprocess.Popen(  # noqa: S603 -- the owner's command
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,  # our own standard output carries the process id
        start_new_session=True,
        # If this process is killed, the command receives SIGTERM. No thread is running here.
        preexec_fn=_end_with_parent(prctl),
    )
    os.write(1, f"{child.pid}\n".encode())
    with selectors.DefaultSelector() as selector:
        selector.register(wakeups, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)  # readable when the owner's end is closed
        owner_fd = _watch(owner)
        if owner_fd is not None:
            selector.register(owner_fd, selectors.EVENT_READ)
        # The owner may have ended before the watch started.
        owner_gone = os.getppid() != owner
        while not received and not owner_gone and child.poll() is None:
            ready = {key.fd for key, _ in selector.select()}
            if wakeups.fileno() in ready:
                wakeups.recv(4096)
            owner_gone = bool(ready & {0, owner_fd})
    _end(child, grace)
    code = child.returncode
    return code if code >= 0 else 128 - code


def _end(child: subprocess.Popen[Any], grace: float) -> None:
    """End the command's process group: SIGTERM, wait, SIGKILL; then processes that left it."""
    _signal_group(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(grace)
    _signal_group(child.pid, signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + _REAP_SECONDS
    # Killing a process makes its children ours, so this repeats.
    while _reap() and time.monotonic() < deadline:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)  # no system call waits for children that are about to become ours


def _reap() -> bool:
    """Reap children that have ended; return whether others are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    """Return the process ids of our children; empty on systems without /proc."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # the group has ended
    except PermissionError:
        return  # macOS reports this for a group of zombies


def _watch(pid: int) -> int | None:
    """Return a file descriptor that is readable when a process ends; None if unsupported."""
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
