"""Loads each plugin in a separate process, with a time limit.

A plugin that exits, hangs or crashes the interpreter does not affect the check of the others.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from agl_core.plugins import PluginRecord
from agl_doctor.prober import Prober


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
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool, ExitStack() as stack:
        home = stack.enter_context(TemporaryDirectory(prefix="agl-doctor-"))
        free: SimpleQueue[Prober] = SimpleQueue()
        for _ in range(workers):
            free.put(stack.enter_context(Prober(Path(home))))
        waiting = [pool.submit(_examine, record, free, timeout, build) for record in records]
        try:
            for done in as_completed(waiting):
                if tell is not None:
                    tell(done.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [done.result() for done in waiting]


def _examine(
    record: PluginRecord, free: SimpleQueue[Prober], timeout: float, build: bool
) -> Examined:
    if record.status not in ("ok", "conflict"):
        return _finding(record, record.status, record.error, 0.0)
    prober = free.get()
    try:
        with TemporaryDirectory(prefix="agl-doctor-") as folder:
            found = _probed(record, prober, Path(folder), timeout, build)
    finally:
        free.put(prober)
    if found.status in ("ok", "warning") and record.status == "conflict":
        return _finding(record, "conflict", record.error, found.seconds)
    return found


def _probed(
    record: PluginRecord, prober: Prober, folder: Path, timeout: float, build: bool
) -> Examined:
    scratch, output, report = folder / "scratch", folder / "output", folder / "report.json"
    scratch.mkdir()
    arguments = (str(report), json.dumps(record.as_json()), "build" if build else "import")
    start = time.perf_counter()
    # Its output goes to a file: a process that the plugin started could hold a pipe open for ever.
    code = prober.run(scratch, output, arguments, timeout)
    seconds = time.perf_counter() - start
    if code is None:
        return _finding(record, "broken", f"not finished after {timeout:g} s", seconds)
    if not report.exists():
        note = f"ended its process with code {code}"
        complaint = _last_line(output)
        return _finding(record, "broken", f"{note}: {complaint}" if complaint else note, seconds)
    found = json.loads(report.read_text(encoding="utf-8"))
    return _finding(record, found["status"], found["note"], found["seconds"])


def _finding(record: PluginRecord, status: str, note: str, seconds: float) -> Examined:
    return Examined(record.key, record.dist, record.version, status, note, seconds)


def _last_line(output: Path) -> str:
    """Return the last line that a probe has printed; empty if it has printed nothing."""
    text = output.read_text(errors="replace") if output.exists() else ""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return lines[-1][:300] if lines else ""
