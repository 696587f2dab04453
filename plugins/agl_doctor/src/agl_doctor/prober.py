"""Runs probes in a server of probes, each with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Self

__all__ = ["Prober"]


class Prober:
    """A server of probes (:mod:`agl_doctor.probe_server`), for one thread at a time.

    It starts with the first probe, and again after a probe that has killed it.

    Args:
        folder: An empty folder, where the server works.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: subprocess.Popen[str] | None = None
        self._lines: SimpleQueue[str] = SimpleQueue()
        """What the server answers; an empty line when it has ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(
        self, folder: Path, output: Path, arguments: Iterable[str], timeout: float
    ) -> int | None:
        """Run a probe; return its exit code, or None if it did not end in time.

        Processes that it leaves behind are killed.

        Args:
            folder: Where it works.
            output: File for what it prints.
            arguments: Those of :mod:`agl_doctor.probe`.
            timeout: Seconds.
        """
        server = self._server or self._start()
        assert server.stdin is not None
        server.stdin.write(json.dumps([str(folder), str(output), *arguments]) + "\n")
        server.stdin.flush()
        probe = self._lines.get()
        if not probe:
            return self._end()
        try:
            code = self._lines.get(timeout=timeout)
        except Empty:
            _kill_group(int(probe))
            if not self._lines.get():
                self._end()
            return None
        _kill_group(int(probe))
        return int(code) if code else self._end()

    def _start(self) -> subprocess.Popen[str]:
        self._lines = SimpleQueue()
        server = self._server = subprocess.Popen(
            [sys.executable, "-m", "agl_doctor.probe_server"],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl+C is for the program, which ends the server
        )
        Thread(target=_read, args=(server, self._lines), daemon=True).start()
        return server

    def _end(self) -> int:
        """End the server; return its exit code."""
        server, self._server = self._server, None
        if server is None:
            return 0
        server.kill()
        if server.stdin is not None:
            with suppress(BrokenPipeError):  # it is gone, with a job that it has not read
                server.stdin.close()
        return server.wait()


def _read(server: subprocess.Popen[str], lines: SimpleQueue[str]) -> None:
    assert server.stdout is not None
    with server.stdout:
        for line in server.stdout:
            lines.put(line.strip())
    lines.put("")


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # all of them have ended
        if os.name == "posix":
            os.killpg(leader, signal.SIGKILL)
        else:
            os.kill(leader, signal.SIGTERM)
