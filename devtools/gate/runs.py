"""``.ci/full_run.toml``: what ran last, when, and for how long.

The file is written by ``python3 dev.py ci`` and is committed. It holds the last commit that a gate
passed, the last full run with what failed in it, when each job passed last, and the tests that a
full run found broken and that a gate had left out, each with the rule that finds it from then on.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from devtools.process import ROOT

NAME = ".ci/full_run.toml"
FILE = ROOT / NAME
WHEELS = "wheels"
LISTS = ("failed", "tests")
"""Fields of a run that are written if they are not empty."""
HEADER = """\
# Written by `python3 dev.py ci`; CONTRIBUTING.md says what it is for.
"""


@dataclass(frozen=True)
class Run:
    """One run of a job, or of everything.

    Attributes:
        commit: The commit it ran on.
        on: The day.
        seconds: How long it took.
        failed: Suites of a full run that failed or were left; the gates after it require them.
        tests: Light test files that failed in a full run. Where they are known, the gates after it
            require these in place of all that it runs with coverage, as the suite :data:`WHEELS`.
        measured: Commit on which the seconds were measured, if not in this run: it ran elsewhere,
            or as a part of another job.
    """

    commit: str
    on: date
    seconds: float
    failed: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    measured: str = ""


@dataclass(frozen=True)
class Missed:
    """A test that failed in a full run and that the gate had left out.

    Attributes:
        test: The test.
        rule: The rule that chooses it from then on.
    """

    test: str
    rule: str


@dataclass(frozen=True)
class Record:
    """The file.

    Attributes:
        gate: The last gate that passed; its commit is what changes are compared with.
        full: The last full run.
        jobs: The last run of each job, by the job's name.
        missed: Tests that a gate left out wrongly.
        owed: Suites that the next gates require: those for which the gate of a change had no time,
            and those that failed in a full run.
    """

    gate: Run | None = None
    full: Run | None = None
    jobs: Mapping[str, Run] = field(default_factory=dict)
    missed: tuple[Missed, ...] = ()
    owed: frozenset[str] = frozenset()

    def seconds(self, job: str) -> float | None:
        """Return how long a job took last time; None if it never ran."""
        return self.jobs[job].seconds if job in self.jobs else None

    def with_gate(
        self,
        gate: Run,
        durations: Mapping[str, float],
        owed: Iterable[str] = (),
        *,
        estimated: Collection[str] = (),
    ) -> Record:
        """Return the record after a gate passed.

        Args:
            gate: The gate.
            durations: Seconds of its jobs and of the suites that they cover.
            owed: Deep suites that it left to the next gates.
            estimated: Those whose seconds it did not measure.
        """
        ran: dict[str, Run] = {}
        for name, seconds in durations.items():
            known = self.jobs.get(name) if name in estimated else None
            measured = (known.measured or known.commit) if known else ""
            ran[name] = Run(gate.commit, gate.on, seconds, measured=measured)
        left = (self.owed - durations.keys()).union(owed)
        return replace(self, gate=gate, jobs={**self.jobs, **ran}, owed=left)

    def with_full_run(
        self,
        run: Run,
        durations: Mapping[str, float],
        failed: Iterable[str] = (),
        covered: Iterable[str] = (),
        *,
        estimated: Collection[str] = (),
    ) -> Record:
        """Return the record after a full run: a gate that owes what failed.

        Args:
            run: The run.
            durations: Seconds of the jobs that passed and of the suites that they cover.
            failed: Suites that failed.
            covered: Those among them of which only the tests of the run failed.
            estimated: See :meth:`with_gate`.
        """
        owed = set(failed)
        paid: set[str] = set()
        if run.tests:
            # They ran: what is left of them is their failed tests.
            paid = {*covered}
            owed = owed - paid | {WHEELS}
        gated = self.with_gate(replace(run, tests=()), durations, owed, estimated=estimated)
        full = replace(run, failed=tuple(sorted(owed)))
        return replace(gated, full=full, owed=gated.owed - (paid - owed))


def read(path: Path = FILE) -> Record:
    """Return the record; an empty one if there is no file.

    Raises:
        SystemExit: The file cannot be read, as after a merge with conflicts.
    """
    if not path.exists():
        return Record()
    try:
        data = tomllib.loads(path.read_text())
        return Record(
            gate=_run(data["gate"]) if "gate" in data else None,
            full=_run(data["full_run"]) if "full_run" in data else None,
            jobs={name: _run(entry) for name, entry in data.get("jobs", {}).items()},
            missed=tuple(Missed(**entry) for entry in data.get("missed", ())),
            owed=frozenset(data.get("owed", ())),
        )
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path}: not a record of gates ({error!r}): restore it with git")


def write(record: Record, path: Path = FILE) -> None:
    """Write the record."""
    lines = [HEADER]
    if record.owed:
        lines += ["owed = [", *(f"    {_text(name)}," for name in sorted(record.owed)), "]", ""]
    for name, run in (("gate", record.gate), ("full_run", record.full)):
        if run:
            lines += [f"[{name}]", *_fields(run), ""]
    for missed in record.missed:
        lines += ["[[missed]]", f"test = {_text(missed.test)}", f"rule = {_text(missed.rule)}", ""]
    if record.jobs:
        lines.append("[jobs]")
        for name, run in sorted(record.jobs.items()):
            lines.append(f"{_text(name)} = {{ {', '.join(_fields(run))} }}")
    path.write_text("\n".join(lines).rstrip() + "\n")


def _run(entry: Mapping[str, Any]) -> Run:
    names = (tuple(entry.get(name, ())) for name in LISTS)
    seconds, measured = entry["seconds"], entry.get("measured", "")
    return Run(entry["commit"], entry["date"], seconds, *names, measured=measured)


def _fields(run: Run) -> list[str]:
    fields = [
        f"commit = {_text(run.commit)}",
        f"date = {run.on.isoformat()}",
        f"seconds = {run.seconds:.0f}",
    ]
    lists = ((name, getattr(run, name)) for name in LISTS)
    fields += [f"{name} = [{', '.join(map(_text, listed))}]" for name, listed in lists if listed]
    return fields + ([f"measured = {_text(run.measured)}"] if run.measured else [])


def _text(text: str) -> str:
    """Write a TOML string; names of tests and rules have no control characters."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
