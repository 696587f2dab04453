"""Writes ``docs/performance.md`` from the output of benchmarks: ``python3 dev.py performance``.

Each benchmark runs several times, and the page keeps the median and the range of each figure that
it printed, with the machine, the date, and how much other programs worked meanwhile. So a figure on
the page is one that somebody can measure again with the command beside it.
"""

from __future__ import annotations

import ast
import datetime
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devtools.process import ROOT, output_of

PAGE = ROOT / "docs/performance.md"
BENCHMARKS = ("trainer", "runner", "tracer", "adapter")
"""Those that need no other machine and no heavy library, and take a minute each."""
RUNS = 3
NUMBER = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w.]*\w)")
"""A figure; ``p99`` and ``3.11.7`` are none."""
NOISE = re.compile(r"^(=+ .*|\.+|\d+ passed.*|platform .*|rootdir: .*|plugins: .*|asyncio: .*)$")

HEAD = """\
# Performance

`python3 dev.py performance` writes this page from the output of the benchmarks.

Measured on {machine}, {date}. Each section says how often its benchmark
ran, and how many cores other programs used meanwhile: a busy machine makes absolute figures worse
and ranges wider. A figure that varied is the median, with the lowest and the highest of the runs:
`2.9 [2.7-3.3]`. The ratios compare with a bare loop or a bare span on the same machine at the same
time; they say more.

Benchmarks of the store server, the proxy, the databases, concurrency and replay need a machine of
their own, or minutes: `python3 dev.py bench server proxy databases concurrency replay`. A GPU is
measured by [`examples/gpu`](../examples/gpu/README.md). [Comparison](comparison.md) has figures of
other projects.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the runs of one benchmark printed.

    Attributes:
        outputs: What each run printed.
        others: Cores that other programs used during each run; empty where the system does not say.
    """

    outputs: Sequence[str]
    others: Sequence[float] = ()

    @property
    def conditions(self) -> str:
        """A sentence on runs and load."""
        runs = f"{len(self.outputs)} runs" if len(self.outputs) > 1 else "One run"
        if not self.others:
            return f"{runs}."
        low, high = min(self.others), max(self.others)
        used = f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
        return f"{runs}; other programs used {used} of {os.cpu_count()} cores meanwhile."


def page(measured: Mapping[str, Measured], *, machine: str, date: str) -> str:
    """Return the page.

    Args:
        measured: What each benchmark printed, by its name.
        machine: The machine in words.
        date: The month.
    """
    parts = [HEAD.format(machine=machine, date=date)]
    for name, found in measured.items():
        parts.append(
            f"## {name}\n\n{_about(name)}\n\n{found.conditions}\n\n"
            f"```sh norun\npython3 dev.py bench {name}\n```\n\n"
            f"```text\n{merged(name, found.outputs)}\n```\n"
        )
    return "\n".join(parts)


def merged(name: str, outputs: Sequence[str]) -> str:
    """Return the lines that all runs printed, with the median and the range of what varied.

    Raises:
        SystemExit: The runs printed different lines.
    """
    texts = [_figures(output) for output in outputs]
    shapes = [NUMBER.sub("#", re.sub(r" +", " ", text)) for text in texts]
    if len(set(shapes)) > 1:
        sys.exit(f"the runs of bench {name} printed different lines:\n" + "\n---\n".join(texts))
    found = [NUMBER.findall(text) for text in texts]
    columns = iter(zip(*found, strict=True))
    return NUMBER.sub(lambda match: _spread(next(columns)), texts[0])


def _spread(values: Sequence[str]) -> str:
    """Return a figure of several runs: ``"2.9 [2.7-3.3]"``, or as it is if it did not vary."""
    ordered = sorted(values, key=lambda value: float(value.replace(",", "")))
    if ordered[0] == ordered[-1]:
        return values[0]
    return f"{ordered[len(ordered) // 2]} [{ordered[0]}-{ordered[-1]}]"


def _figures(output: str) -> str:
    lines = [line.rstrip() for line in output.splitlines() if not NOISE.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def _about(name: str) -> str:
    """Return a benchmark's docstring, without how to run it."""
    source = (ROOT / f"tests/benchmark/bench_{name}.py").read_text(encoding="utf-8")
    paragraphs = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
    told = [" ".join(part.split()) for part in paragraphs if not part.startswith("Run ``")]
    return "\n\n".join(told).replace("``", "`")


def write(python: Path, names: tuple[str, ...] = BENCHMARKS, runs: int = RUNS) -> None:
    """Run benchmarks one after another, and write the page.

    Args:
        python: An interpreter of the development environment.
        names: The benchmarks.
        runs: How often each runs.
    """
    measured = {name: measure(python, name, runs) for name in names}
    machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
    date = datetime.date.today().strftime("%B %Y")
    PAGE.write_text(page(measured, machine=machine, date=date), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)


def measure(python: Path, name: str, runs: int) -> Measured:
    """Run a benchmark several times."""
    command = (python, "-m", "pytest", "-q", "-m", "benchmark", "-s", "--timeout=0")
    outputs: list[str] = []
    others: list[float] = []
    for number in range(runs):
        print(f"{name}: run {number + 1} of {runs}", file=sys.stderr)
        before = _work_of_others()
        outputs.append(output_of(*command, f"tests/benchmark/bench_{name}.py"))
        after = _work_of_others()
        if before is not None and after is not None:
            seconds = after[0] - before[0]
            others.append(max(0.0, (after[1] - before[1]) / seconds))
    return Measured(outputs, others)


def _work_of_others() -> tuple[float, float] | None:
    """Return the time now, and the CPU seconds of all programs but those that this one started.

    None where the system does not tell; the form is that of Linux, see ``proc_stat(5)``.
    """
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, first.split()[1:])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.monotonic(), busy - sum(usage.ru_utime + usage.ru_stime for usage in own)
