"""Loads each plugin in a separate process, with a time limit.

A plugin that exits, hangs or crashes the interpreter does not affect the check of the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from agl_core.plugins import PluginRecord


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of examining one plugin.

    Attributes:
        key: Name of the plugin's entry point.
        dist: Distribution that provides it.
        version: Version of that distribution.
        status: Status of the record after loading, or ``warning``: the plugin can be used, and its
            author should mend something.
        note: Description of the problem, or a remark; may be empty.
        seconds: Time to import (and build) the plugin; 0 if it was not loaded.
    """

    key: str
    dist: str
    version: str
    status: str
    note: str
    seconds: float


def examine(
    records: Iterable[PluginRecord],
    *,
    timeout: float = 60.0,
    build: bool = True,
    tell: Callable[[Examined], None] | None = None,
) -> list[Examined]:
    """Examine plugins, several at a time.

    Args:
        records: The plugins. Those that are disabled, incompatible, or broken according to their
            metadata are reported without loading them.
        timeout: Time limit of each plugin, in seconds.
        build: Whether to build components that need no options.
        tell: Called with each result when it is there, in the caller's thread.

    Returns:
        One result for each record, in their order.
    """
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        waiting = [pool.submit(_examine, record, timeout, build) for record in records]
        for done in as_completed(waiting):
            if tell is not None:
                tell(done.result())
    return [done.result() for done in waiting]


def _examine(record: PluginRecord, timeout: float, build: bool) -> Examined:
    if record.status not in ("ok", "conflict"):
        return _finding(record, record.status, record.error, 0.0)
    with tempfile.TemporaryDirectory(prefix="agl-doctor-") as folder:
        report = Path(folder) / "report.json"
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        start = time.perf_counter()
        ending, complaint = _run_probe(record, report, scratch, timeout, build)
        seconds = time.perf_counter() - start
        if ending is None:
            return _finding(record, "broken", f"not finished after {timeout:g} s", seconds)
        if not report.exists():
            note = f"ended its process with code {ending}"
            note = f"{note}: {complaint}" if complaint else note
            return _finding(record, "broken", note, seconds)
        found = json.loads(report.read_text(encoding="utf-8"))
    status, note = found["status"], found["note"]
    if status in ("ok", "warning") and record.status == "conflict":
        status, note = "conflict", record.error
    return _finding(record, status, note, found["seconds"])


def _finding(record: PluginRecord, status: str, note: str, seconds: float) -> Examined:
    return Examined(record.key, record.dist, record.version, status, note, seconds)


def _run_probe(
    record: PluginRecord, report: Path, scratch: Path, timeout: float, build: bool
) -> tuple[int | None, str]:
    """Run the probe; return its exit code (None: timed out) and its last line of output."""
    command = [sys.executable, "-m", "agl_doctor.probe", str(report)]
    command += [json.dumps(record.as_json()), "build" if build else "import"]
    # A file instead of a pipe: a process that the plugin started could hold a pipe open for ever.
    with (scratch.parent / "output").open("w+b") as output:
        process = subprocess.Popen(  # noqa: S603
            command,
            cwd=scratch,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a process group, which _end() can kill as a whole
        )
        try:
            process.wait(timeout)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        lines = output.read().decode(errors="replace").split("\n")
    words = [line.strip() for line in lines if line.strip()]
    return code, words[-1][:300] if words else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the probe and the processes that it started."""
    if os.name == "posix":
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()  # the process group is gone; kill the probe if it still runs
    else:
        process.kill()
    process.wait()
