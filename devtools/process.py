"""Runs commands and jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def exit_code(*command: str | Path, env: Mapping[str, str] | None = None) -> int:
    """Run a command from the repository's root and return its exit code."""
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, env={**os.environ, **(env or {})}, check=False
    ).returncode


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


def every(jobs: Mapping[str, Callable[[], object]]) -> None:
    """Run each job, print its name and its duration, and exit at the end if any job failed.

    Later jobs run even if an earlier job failed.
    """
    durations: list[str] = []
    failed: list[str] = []
    for name, job in jobs.items():
        print(f"-- {name}", flush=True)
        start = time.monotonic()
        try:
            job()
        except SystemExit as end:
            failed.append(name)
            print(f"-- {name} failed: {end}", flush=True)
        durations.append(f"{name} {time.monotonic() - start:.0f} s")
        print(f"-- {durations[-1]}", flush=True)
    if len(durations) > 1:
        print("-- " + ", ".join(durations), flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
