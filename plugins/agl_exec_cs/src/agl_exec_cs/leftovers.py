"""Ends the processes and threads that agents left behind, so that they hold up no exit.

Every child of the strategy has a mark in its environment, which the programs that agents start
inherit. The mark finds a program whose own parent has ended (``sh -c "server &"``), also after the
runner itself has crashed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

import psutil

__all__ = ["Leftovers"]

logger = logging.getLogger(__name__)

_MARK: Final = "AGL_RUNNER_MARK"
_TERMINATE_SECONDS: Final = 1.0
"""How long a process may take to end after SIGTERM."""
_THREAD_SECONDS: Final = 2.0
"""How long threads may go on after the end of the work."""
_LONGEST_COMMAND: Final = 80  # characters
# They end by themselves when the process that uses them ends.
_HELPERS: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


class Leftovers:
    """The processes and threads that agents leave behind in one child process; picklable.

    Args:
        name: Name of the child, for the log.
        mark: A unique text.
    """

    def __init__(self, name: str, mark: str) -> None:
        self.name = name
        self._mark = mark

    def mark_this_process(self) -> None:
        """Let programs started from now on inherit the mark; called in the child."""
        os.environ[_MARK] = self._mark

    def exit_soon(self, code: int) -> None:
        """Let this process exit within seconds; called in the child when its work is done.

        Ends the processes now. Threads that keep the interpreter from exiting get a moment; then
        the process exits without them.

        Args:
            code: Exit code of a process that threads keep alive.
        """
        self.end_processes(os.getpid())
        left = [thread for thread in threading.enumerate() if _is_of_an_agent(thread)]
        if any(not thread.daemon for thread in left):
            threading.Thread(
                target=self._exit_without, args=(left, code), name="agl-exit", daemon=True
            ).start()
        elif left:  # libraries keep daemon threads too
            self._name(left, logging.INFO)

    def end_processes(self, pid: int, seconds: float = _TERMINATE_SECONDS) -> None:
        """Terminate the processes, kill those that ignore it, and name them in the log.

        Args:
            pid: Process id of the child; it may have ended.
            seconds: How long a process may take to end after SIGTERM.
        """
        left = self._processes(pid)
        if not left:
            return
        for process in left:
            _signal(process, signal.SIGTERM)
        names = ", ".join(_describe(process) for process in left)
        logger.warning("Ending processes that agents left behind in %s: %s", self.name, names)
        _, alive = psutil.wait_procs(left, timeout=seconds)
        for process in alive:
            _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))

    def _processes(self, pid: int) -> list[psutil.Process]:
        found = {process for process in psutil.process_iter() if self._is_marked(process)}
        try:
            found.update(psutil.Process(pid).children(recursive=True))  # forked ones have no mark
        except psutil.NoSuchProcess:
            logger.debug("%s is gone; only marked processes can be found", self.name)
        return [process for process in found if process.pid != pid and not _is_harmless(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(_MARK) == self._mark
        except psutil.Error:
            return False  # it ended, or belongs to another user

    def _exit_without(self, threads: Sequence[threading.Thread], code: int) -> None:
        deadline = time.monotonic() + _THREAD_SECONDS
        holding_up = [thread for thread in threads if not thread.daemon]
        for thread in holding_up:
            thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in holding_up):
            return  # the main thread may be busy with exit functions
        self._name([thread for thread in threads if thread.is_alive()], logging.WARNING)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)

    def _name(self, threads: Sequence[threading.Thread], level: int) -> None:
        names = ", ".join(thread.name for thread in threads)
        logger.log(level, "%s ends with threads that agents left behind: %s", self.name, names)


def _is_of_an_agent(thread: threading.Thread) -> bool:
    """Tell whether an agent, or a library that it uses, started a thread."""
    return not thread.name.startswith("agl-") and thread is not threading.main_thread()


def _is_harmless(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(helper in command for helper in _HELPERS)


def _describe(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        command = "ended meanwhile"
    return f"{command[:_LONGEST_COMMAND]} (process {process.pid})"


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error as error:
        logger.debug("process %d: %r", process.pid, error)
