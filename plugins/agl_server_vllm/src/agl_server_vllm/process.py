"""vLLM's processes: start, log and end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from agl_core.errors import LLMServerError

__all__ = ["KeptProcess", "message_of"]

_TAIL_BYTES: Final = 16_384
"""The end of the log in which the last lines are looked for."""
_TAIL_LINES: Final = 12
"""The end of a traceback of vLLM, which says what is wrong."""
_EXTRA_SECONDS: Final = 15.0
"""Time that the keeper may need beyond the grace period."""
_PREFIX: Final = re.compile(r"^(\([^)]*pid=\d+\) )?([A-Z]+ \S+ \S+ \[[^\]]*\] )?")


def message_of(line: str) -> str:
    """Return the message of a line of vLLM's log, without process, level, time and place."""
    return _PREFIX.sub("", line).strip()


class KeptProcess:
    """A command run by a keeper process (:mod:`agl_server_vllm.keeper`).

    The command and all its processes end when :meth:`stop` is called, and when this process ends in
    any way, SIGKILL included. Its constructor waits for the keeper's first word: seconds on a busy
    machine.

    Args:
        command: Command to run.
        env: Its environment variables.
        grace: Seconds between SIGTERM and SIGKILL.
        log_file: File for its output; None is a temporary file, which is kept after a failure.

    Raises:
        LLMServerError: The command cannot be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        grace: float,
        log_file: Path | None = None,
    ) -> None:
        self._grace = grace
        self._temporary = log_file is None
        if log_file is None:
            handle, name = tempfile.mkstemp(prefix="agl-vllm-", suffix=".log")
            log_file = Path(name)
        else:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.log_file = log_file
        keeper = [sys.executable, "-I", str(Path(__file__).with_name("keeper.py"))]
        try:
            self._keeper = subprocess.Popen(  # noqa: S603 -- the keeper; the user's command
                [*keeper, str(os.getpid()), str(grace), *command],
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=handle,
                start_new_session=True,  # Ctrl+C must reach this process only; it stops the keeper
            )
        finally:
            os.close(handle)
        self.pid = self._read_pid()
        """Process id, process group and session of the command."""

    def _read_pid(self) -> int:
        assert self._keeper.stdout is not None
        word = self._keeper.stdout.readline()  # empty if the keeper failed
        self._keeper.stdout.close()
        if not word.strip():
            self._keeper.wait()
            raise LLMServerError(f"vLLM cannot be started: {self.tail()}")
        return int(word)

    @property
    def exit_code(self) -> int | None:
        """Exit code, or 128 + the signal's number; None while the command runs."""
        code = self._keeper.poll()
        return code if code is None or code >= 0 else 128 - code

    def last_line(self) -> str:
        """Return the last message in its log."""
        lines = [message_of(line) for line in self._read_tail()]
        return next((line for line in reversed(lines) if line), "")

    def tail(self) -> str:
        """Return the last lines of its log, and the log's path."""
        lines = [line for line in self._read_tail() if line.strip()][-_TAIL_LINES:]
        text = "\n".join(lines) or "(the log is empty)"
        return f"{text}\n(full log: {self.log_file})"

    def _read_tail(self) -> list[str]:
        with self.log_file.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()

    async def wait(self) -> int:
        """Wait until the command ends; return its exit code."""
        await asyncio.to_thread(self._keeper.wait)
        code = self.exit_code
        assert code is not None
        return code

    async def stop(self, *, keep_log: bool = False) -> None:
        """End the command and all its processes. Idempotent.

        Args:
            keep_log: Whether to keep a temporary log file.
        """
        if self._keeper.poll() is None:
            self._keeper.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._keeper.wait, self._grace + _EXTRA_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            await asyncio.to_thread(self._keeper.wait)
        if self._keeper.returncode < 0:
            self._kill_group()  # the keeper was killed before it could do so
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        if self._temporary and not keep_log:
            self.log_file.unlink(missing_ok=True)

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
