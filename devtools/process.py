"""Runs commands and jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Lock
from typing import IO, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
CORES = os.cpu_count() or 1
_output: ContextVar[IO[str] | None] = ContextVar("output", default=None)
"""The file that the current job's commands write to; None is this program's own output."""
_variables: ContextVar[Mapping[str, str] | None] = ContextVar("variables", default=None)
"""Environment variables that the current job adds to those of its commands."""
END_SECONDS = 30
"""Time that a command has to end at Ctrl+C: pytest tears fixtures down, a demo closes its store."""
_interrupted = Event()
"""Set from Ctrl+C until the jobs that ran side by side have ended: they start nothing more."""
_ends: set[Callable[[], None]] = set()
"""Functions that end the commands which Ctrl+C does not reach."""
_LONGEST_WAIT = 0.2
"""Most seconds of a wait for a job: a Ctrl+C from just before a wait is handled only after it."""
_MISSED_SECONDS = 1
"""Most between Ctrl+C and the main thread's turn. A command that began meanwhile may have missed
it. One that did not is still starting: two signals end it as one does."""


class Interrupted(KeyboardInterrupt):
    """Ctrl+C while jobs ran.

    Attributes:
        durations: The duration of each job that ended, in seconds.
        failed: Names of the jobs that failed, that were interrupted, or that did not run.
    """

    def __init__(self, durations: Mapping[str, float], failed: Sequence[str]) -> None:
        super().__init__()
        self.durations = durations
        self.failed = failed


def say(text: str) -> None:
    """Print a line where the current job's commands print."""
    print(text, file=_output.get(), flush=True)


def exit_code(*command: str | Path, env: Mapping[str, str] | None = None) -> int:
    """Run a command from the repository's root and return its exit code.

    Ctrl+C reaches the command, too: it is waited for, and killed after :data:`END_SECONDS` or at
    the second Ctrl+C.
    """
    if _interrupted.is_set():
        sys.exit("interrupted")
    output = _output.get()
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **(_variables.get() or {}), **(env or {})},
        stdout=output,
        stderr=output and subprocess.STDOUT,
    ) as process:
        started = time.monotonic()

        def pass_on() -> None:
            if time.monotonic() - started < _MISSED_SECONDS:
                process.send_signal(signal.SIGINT)

        try:
            with ended_by(pass_on):
                return process.wait()
        except KeyboardInterrupt:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                say(f"{command[0]} did not end within {END_SECONDS} s of Ctrl+C")
            finally:
                process.kill()
            raise


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> None:
    """Run a command from the repository's root; a failure ends this program with its exit code."""
    code = exit_code(*command, env=env)
    if code:
        sys.exit(code)


def output_of(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return its output.

    Raises:
        SystemExit: The command failed; the message holds the command and its output.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


@contextmanager
def adding(variables: Mapping[str, str]) -> Iterator[None]:
    """Add to the environment of the commands that this thread runs."""
    token = _variables.set(variables)
    try:
        yield
    finally:
        _variables.reset(token)


@contextmanager
def ended_by(end: Callable[[], None]) -> Iterator[None]:
    """Call ``end`` at Ctrl+C while a command runs that has a process group of its own."""
    _ends.add(end)
    try:
        if _interrupted.is_set():
            end()
        yield
    finally:
        _ends.discard(end)


def once(function: Callable[[], T]) -> Callable[[], T]:
    """Make a function run once, and let jobs that call it meanwhile wait for its result."""
    lock, cached = Lock(), cache(function)

    @wraps(function)
    def locked() -> T:
        with lock:
            return cached()

    return locked


def every(jobs: Mapping[str, Callable[[], object]], *, side_by_side: Collection[str] = ()) -> None:
    """Run each job as :func:`attempt` does, and exit at the end if any job failed."""
    _, failed = attempt(jobs, side_by_side=side_by_side)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def attempt(
    jobs: Mapping[str, Callable[[], object]], *, side_by_side: Collection[str] = ()
) -> tuple[dict[str, float], list[str]]:
    """Run each job, and print its name and its duration.

    Later jobs run even if an earlier job failed.

    Args:
        jobs: The jobs by name.
        side_by_side: Names of jobs that run after the others, as many at a time as there are
            cores. The output of such a job's commands is printed whole, after the job's end.

    Returns:
        The duration of each job in seconds, and the names of the jobs that failed.

    Raises:
        Interrupted: Ctrl+C was pressed.
    """
    durations: dict[str, float] = {}
    failed: list[str] = []

    def timed(name: str) -> str:
        """Run a job; return the lines that say how it ended."""
        said, start = "", time.monotonic()
        try:
            jobs[name]()
        except SystemExit as end:
            failed.append(name)
            said = f"-- {name} failed: {end}\n"
        except Exception:
            failed.append(name)
            said = f"{traceback.format_exc()}-- {name} failed\n"
        durations[name] = time.monotonic() - start
        return f"{said}-- {name} {durations[name]:.0f} s"

    def captured(name: str) -> str:
        with TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            token = _output.set(output)
            end = timed(name)
            _output.reset(token)
            output.seek(0)
            return f"-- {name}\n{output.read()}{end}"

    try:
        for name in (name for name in jobs if name not in side_by_side):
            say(f"-- {name}")
            say(timed(name))
        with ThreadPoolExecutor(CORES) as pool:
            submitted, given_up = Event(), Event()

            def in_turn(name: str) -> str:
                # Ctrl+C while the pool starts a thread makes the pool forget that thread.
                submitted.wait()
                return "" if given_up.is_set() else captured(name)

            try:
                texts = [pool.submit(in_turn, name) for name in jobs if name in side_by_side]
                submitted.set()
                for text in texts:
                    while not wait([text], _LONGEST_WAIT).done:
                        pass
                    say(text.result())
            except KeyboardInterrupt:
                if not submitted.is_set():
                    given_up.set()
                    submitted.set()
                _interrupted.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for end in tuple(_ends):
                    end()
                raise
    except KeyboardInterrupt as error:
        _interrupted.clear()
        left = [name for name in jobs if name not in durations]
        raise Interrupted(durations, failed + left) from error
    if len(durations) > 1:
        say("-- " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in durations.items()))
    return durations, failed
