"""Traces calls of hooks, for ``agl plugins trace``.

If the environment variable ``AGL_TRACE_HOOKS`` names a file, each process appends a JSON line per
call to it. Child processes inherit the variable, so the file has the calls of a whole run. Values
of parameters are not written, since they may hold keys.
"""

from __future__ import annotations

import inspect
import json
import os
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from agl_core.plugins._imports import one_line

if TYPE_CHECKING:
    import pluggy

TRACE_VARIABLE: Final = "AGL_TRACE_HOOKS"
"""Names the file to which processes append their calls of hooks."""


def watch(manager: pluggy.PluginManager) -> None:
    """Trace the hook calls of a manager, if this process traces; costs nothing otherwise."""
    if path := os.environ.get(TRACE_VARIABLE):
        calls = _Calls(Path(path))
        manager.add_hookcall_monitoring(calls.before, calls.after)


class _Calls:
    """What pluggy calls around each hook call. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = threading.local()  # start times of the calls that this thread is in

    def before(
        self, name: str, implementations: Sequence[Any], parameters: Mapping[str, object]
    ) -> None:
        del name, implementations, parameters
        starts: list[tuple[float, float]] = self._open.__dict__.setdefault("starts", [])
        starts.append((time.time(), time.perf_counter()))

    def after(
        self,
        outcome: pluggy.Result[Any],
        name: str,
        implementations: Sequence[Any],
        parameters: Mapping[str, object],
    ) -> None:
        del parameters
        began, start = self._open.starts.pop()
        if not implementations:
            return
        call = {
            "time": began,
            "process": os.getpid(),
            "hook": name,
            # pluggy calls the last one first.
            "plugins": [each.plugin_name for each in reversed(implementations)],
        }
        if outcome.exception is not None:
            self._write(call, start, outcome.exception)
            return
        result = outcome.get_result()
        results = cast("list[Any]", result) if isinstance(result, list) else [result]
        if not any(map(inspect.iscoroutine, results)):
            self._write(call, start)
            return
        timed = [
            self._awaited(each, call, start) if inspect.iscoroutine(each) else each
            for each in results
        ]
        outcome.force_result(timed if isinstance(result, list) else timed[0])

    async def _awaited(
        self, coroutine: Coroutine[Any, Any, Any], call: Mapping[str, Any], start: float
    ) -> Any:
        """Await what an async implementation returned, and write the call when it has ended."""
        error: BaseException | None = None
        try:
            return await coroutine
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._write(call, start, error)

    def _write(
        self, call: Mapping[str, Any], start: float, error: BaseException | None = None
    ) -> None:
        seconds = time.perf_counter() - start
        said = None if error is None else one_line(error)
        line = json.dumps({**call, "seconds": seconds, "error": said}).encode() + b"\n"
        # One write in append mode: lines of threads and processes do not mix.
        with self._path.open("ab", buffering=0) as file:
            file.write(line)
