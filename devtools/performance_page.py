"""Writes ``docs/performance.md`` from the output of benchmarks: ``python3 dev.py performance``.

The benchmarks print; this page keeps what they printed, with the machine and the date. So a figure
on the page is one that somebody can measure again with the command beside it.
"""

from __future__ import annotations

import ast
import datetime
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from devtools.process import ROOT, output_of

PAGE = ROOT / "docs/performance.md"
BENCHMARKS = ("trainer", "runner", "tracer", "adapter")
"""Those that need no other machine and no heavy library, and take a minute each."""
NOISE = re.compile(r"^(=+ .*|\.+|\d+ passed.*|platform .*|rootdir: .*|plugins: .*|asyncio: .*)$")

HEAD = """\
# Performance

`python3 dev.py performance` writes this page from the output of the benchmarks.

Measured on {machine}, {date}. {load}
The ratios in each block compare with a bare loop or a bare span on the same machine at the same
time; they say more than the absolute figures.

The README compares with agent-lightning 0.3. It was not run: its column has constants of its
interface.

Benchmarks of the store server, the proxy, the databases, concurrency and replay need a machine of
their own, or minutes: `python3 dev.py bench server proxy databases concurrency replay`. A GPU is
measured by [`examples/gpu`](../examples/gpu/README.md).
"""


def page(outputs: Mapping[str, str], *, machine: str, date: str, load: str) -> str:
    """Return the page.

    Args:
        outputs: What each benchmark printed, by its name.
        machine: The machine in words.
        date: The month.
        load: A sentence on other work on the machine.
    """
    parts = [HEAD.format(machine=machine, date=date, load=load)]
    for name, output in outputs.items():
        lines = [line.rstrip() for line in output.splitlines() if not NOISE.match(line)]
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
        parts.append(
            f"## {name}\n\n{_about(name)}\n\n"
            f"```sh norun\npython3 dev.py bench {name}\n```\n\n```text\n{text}\n```\n"
        )
    return "\n".join(parts)


def _about(name: str) -> str:
    source = (ROOT / f"tests/benchmark/bench_{name}.py").read_text(encoding="utf-8")
    first = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0]
    return " ".join(first.split()).replace("``", "`")


def load_now() -> str:
    """Say how busy the machine is; an empty text where the system does not tell."""
    if not hasattr(os, "getloadavg"):
        return ""
    cores, busy = os.cpu_count() or 1, os.getloadavg()[0]
    return f"Other programs used the machine (load {busy:.1f})." if busy > cores / 4 else ""


def write(python: Path, names: tuple[str, ...] = BENCHMARKS) -> None:
    """Run benchmarks one after another, and write the page.

    Args:
        python: An interpreter of the development environment.
        names: The benchmarks.
    """
    load = load_now()
    command = (python, "-m", "pytest", "-q", "-m", "benchmark", "-s", "--timeout=0")
    outputs = {n: output_of(*command, f"tests/benchmark/bench_{n}.py") for n in names}
    machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
    date = datetime.date.today().strftime("%B %Y")
    PAGE.write_text(page(outputs, machine=machine, date=date, load=load), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
