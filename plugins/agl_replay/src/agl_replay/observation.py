"""Observes what an agent's code reads from outside while it runs: time, random numbers, files, …

A profile function sees calls of C functions, which no patch of a module would see where the agent
imported the function by name; an audit hook sees files, sockets and processes. A read counts if the
agent's own code makes it, directly or through a few modules of the standard library. What
libraries read for themselves (timeouts, retries, log records) does not count.

``python -m agl_replay.observation`` replays a rollout once and prints what it observed, for
:mod:`agl_replay.check`.
"""

from __future__ import annotations

import asyncio
import builtins
import datetime
import os
import random
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

from agl_cli_kit import open_store, print_json
from agl_core.genai import loads
from agl_replay.cli import load_plan, open_recording
from agl_replay.proxy import running_ports
from agl_replay.replaying import replay
from agl_replay.report import result_as_json

__all__ = ["Observed", "Observer", "observing"]

_FUNCTIONS: Final = {
    time.time: "time.time",
    time.time_ns: "time.time_ns",
    time.localtime: "time.localtime",
    time.gmtime: "time.gmtime",
    os.urandom: "os.urandom",
    builtins.hash: "hash",
    builtins.id: "id",
}
_KINDS: Final = {"os.urandom": "random", "hash": "hash", "id": "hash"}
_TODAY: Final = frozenset({"now", "today", "utcnow"})
_DRAWS: Final = frozenset({"random", "getrandbits"})
_THROUGH: Final = frozenset({"random", "uuid", "secrets", "tempfile", "datetime", "_pydatetime"})
"""Modules through which a read is the caller's."""
_CODE: Final = (".py", ".pyc", ".so", ".pyd", ".pth")
_LIBRARIES: Final = tuple(
    str(Path(path).resolve()) + os.sep
    for path in {
        sys.prefix,
        sys.base_prefix,
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)


@dataclass(frozen=True)
class Observed:
    """One place at which the agent's code reads from outside.

    Attributes:
        kind: ``time``, ``random``, ``hash``, ``file``, ``socket`` or ``process``.
        what: The function, the file or the address.
        file: The file of the agent's code.
        line: The line of the call.
    """

    kind: str
    what: str
    file: str
    line: int


class Observer:
    """Counts reads by their place; see :func:`observing`.

    Attributes:
        reads: Number of reads by place.
        files: Files of the agent's code that ran.
    """

    def __init__(self) -> None:
        self.reads: Counter[Observed] = Counter()
        self.files: set[str] = set()

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        """Note a call of a C function, and the agent's files (:func:`sys.setprofile`)."""
        if event == "call" and frame.f_code.co_filename not in self.files and _is_agent(frame):
            self.files.add(frame.f_code.co_filename)
        if event != "c_call":
            return
        what = _clock_or_chance(frame, arg)
        if what:
            kind = _KINDS.get(what, "random" if what.startswith("random.") else "time")
            caller = _direct_caller(frame)
            if caller is not None and (kind != "hash" or caller is frame):
                self._note(kind, what, caller)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Note a file, a connection or a process (:func:`sys.addaudithook`)."""
        if event == "open":
            path = args[0]
            if isinstance(path, bytes):
                path = os.fsdecode(path)
            if not isinstance(path, str) or _is_of_library(path):
                return
            kind, what = "file", path
        elif event in ("os.listdir", "os.scandir"):
            kind, what = "file", str(args[0])
        elif event == "socket.connect":
            address = args[1]
            if isinstance(address, tuple) and cast("Any", address)[1] in running_ports():
                return
            kind, what = "socket", _address(address)
        elif event == "subprocess.Popen":
            kind, what = "process", str(args[0])
        else:
            return
        caller = _indirect_caller(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        if caller is not None:
            self._note(kind, what, caller)

    def _note(self, kind: str, what: str, frame: FrameType) -> None:
        self.reads[Observed(kind, what, frame.f_code.co_filename, frame.f_lineno)] += 1


@contextmanager
def observing() -> Generator[Observer]:
    """Observe this thread and those started within the context. Once per process."""
    observer = Observer()
    on = True
    sys.addaudithook(lambda event, args: observer.audit(event, args) if on else None)
    threading.setprofile(observer.profile)
    sys.setprofile(observer.profile)
    try:
        yield observer
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        on = False


def _clock_or_chance(frame: FrameType, called: Any) -> str:
    """Return the name of a function that reads the clock or random numbers, or an empty text."""
    try:
        known = _FUNCTIONS.get(called)
    except TypeError:  # methods of unhashable objects
        return ""
    if known is not None:
        return known
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if name in _TODAY and isinstance(owner, type) and issubclass(owner, datetime.date):
        return f"datetime.{owner.__name__}.{name}"
    if name in _DRAWS and owner is random._inst:  # type: ignore[attr-defined]
        return f"random.{name}"
    unseeded = name == "seed" and frame.f_code.co_name == "seed" and "a" in frame.f_locals
    if unseeded and isinstance(owner, random.Random) and frame.f_locals["a"] is None:
        return "random.Random()"
    return ""


def _direct_caller(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the agent that made a call, through the modules of ``_THROUGH`` only."""
    while frame is not None:
        if _is_agent(frame):
            return frame
        if frame.f_globals.get("__name__") not in _THROUGH:
            return None
        frame = frame.f_back
    return None


def _indirect_caller(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the agent, unless the framework or an import is above it."""
    while frame is not None:
        if _is_agent(frame):
            return frame
        name = str(frame.f_globals.get("__name__"))
        if name.startswith("agl_") or "importlib" in name:
            return None
        frame = frame.f_back
    return None


def _is_agent(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    name = str(frame.f_globals.get("__name__"))
    ours = name.startswith("agl_") or file == __file__  # this module runs as __main__
    return not (ours or file.startswith(("<", *_LIBRARIES)))


def _is_of_library(path: str) -> bool:
    absolute = os.path.abspath(path)  # noqa: PTH100
    return absolute.endswith(_CODE) or absolute.startswith((*_LIBRARIES, "/dev/", "/proc/"))


def _address(address: Any) -> str:
    if isinstance(address, tuple):
        host, port = cast("Any", address)[:2]
        return f"{host}:{port}"
    return str(address)


def main(arguments: dict[str, Any]) -> None:
    """Replay a rollout once and print its result and the reads as JSON.

    Args:
        arguments: ``agent``, ``rollout``, ``attempt``, and ``backend``, ``path``, ``url`` of the
            store.
    """
    plan = load_plan(arguments["agent"])
    where = arguments["backend"], arguments["path"], arguments["url"]
    store = open_store(*where, reading=True)

    async def run() -> dict[str, Any]:
        try:
            recording = await open_recording(store, arguments["rollout"], arguments["attempt"])
        finally:
            await store.close()
        tracer = plan.build_trainer(with_algorithm=False).tracer
        with observing() as observer:
            result = await replay(plan.agent, recording, tracer=tracer, hooks=plan.hooks)
        reads = [{**vars(read), "calls": count} for read, count in observer.reads.items()]
        files = sorted(observer.files)
        found = {"changed_at": result.changed_at, "reads": reads, "files": files}
        return {**result_as_json(result), **found}

    print_json(asyncio.run(run()))


if __name__ == "__main__":
    main(loads(sys.argv[1].encode()))
