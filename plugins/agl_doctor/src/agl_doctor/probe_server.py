"""Runs probes one after another: ``python -m agl_doctor.probe_server``.

What every plugin imports, the contracts of the core, is imported once. Each probe is then a fork of
this process, so it starts in milliseconds and cannot affect the others.

A line on standard input is a job: a JSON list of the folder to work in, the file for its output,
and the arguments of :mod:`agl_doctor.probe`. The answer is two lines: the id of the probe's
process, which leads a process group, and its exit code once it has ended.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from importlib import import_module
from typing import IO, Final

from agl_doctor import probe

CAN_FORK: Final = sys.platform == "linux"
"""Not on macOS, whose libraries may crash in a fork, and not on Windows, which has none."""
_CONTRACTS: Final = (
    *("adapter", "agent", "algorithm", "execution", "llm_server", "metrics", "proxy", "runner"),
    *("store", "tracer", "trainer", "types"),
)


def main() -> None:
    if CAN_FORK:
        _import_contracts()
    for line in sys.stdin:
        folder, output, *arguments = json.loads(line)
        if not CAN_FORK:
            with open(output, "wb") as file:  # noqa: PTH123 -- it is closed when the probe has it
                process = _spawned(folder, file, arguments)
            _answer(process.pid)
            _answer(process.wait())
            continue
        child = os.fork()
        if child == 0:
            _become_probe(folder, output)
            probe.main(*arguments)
            return  # ends like any program: it waits for threads, and calls handlers of the exit
        _answer(child)
        _answer(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _import_contracts() -> None:
    for name in _CONTRACTS:
        package = import_module(f"agl_core.{name}")
        for public in package.__all__:
            getattr(package, public)  # imports the module that defines it
    gc.freeze()  # no collection in a fork copies these pages


def _become_probe(folder: str, output: str) -> None:
    """Give a fork its process group, folder, input and output."""
    os.setsid()
    os.chdir(folder)
    for stream, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY)):
        os.dup2(os.open(path, flags | os.O_CREAT, 0o600), stream)
    os.dup2(1, 2)


def _spawned(folder: str, output: IO[bytes], arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "agl_doctor.probe", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


if __name__ == "__main__":
    main()
