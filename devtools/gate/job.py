"""The jobs of a gate, how long they take, and the deep suites that they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNKNOWN_SECONDS = 300
"""Assumed time of a job that never ran."""
START_SECONDS = 20
"""Time of a run of pytest beside its tests: it collects twice, the second time for ``timing``."""
CORES = 2
"""Cores of CI's machine. A plan is made for it, wherever it is made."""


@dataclass(frozen=True)
class Job:
    """One thing that a gate runs.

    Attributes:
        step: Name of a function of :mod:`devtools.gate.steps` or a command of ``dev.py``.
        arguments: Its arguments: test files, pages, or names of packages.
        why: The reason, for people.
        seconds: How long it took last time, or an estimate from the recorded run; None if unknown.
        beside: Whether other jobs may run at the same time.
        label: Tells it from other jobs of its step: a package, an example, a part.
        covers: Names of the deep suites that it runs.
        whole: Whether it runs the tests marked ``full``, too.
    """

    step: str
    arguments: tuple[str, ...] = ()
    why: str = ""
    seconds: float | None = None
    beside: bool = False
    label: str = ""
    covers: tuple[str, ...] = ()
    whole: bool = False

    @property
    def name(self) -> str:
        """The step and the label: ``lint``, ``package agl_algo_grpo``."""
        return f"{self.step} {self.label}".strip()


def duration(jobs: Iterable[Job]) -> float:
    """Return how long jobs take, in seconds; those that may run beside others share the cores."""
    seconds = {True: 0.0, False: 0.0}
    for job in jobs:
        seconds[job.beside] += UNKNOWN_SECONDS if job.seconds is None else job.seconds
    return seconds[False] + seconds[True] / CORES


def debts_of(jobs: Iterable[Job]) -> Iterable[str]:
    """Yield the names of the deep suites that are owed with jobs."""
    for job in jobs:
        yield from job.covers or (job.step,)


def owed_for(job: Job) -> Iterable[str]:
    """Return the debts of which each makes a job due: those of the slow tests pay theirs."""
    return ("cover",) if job.step == "cover" else debts_of([job])


def joined(slow: Sequence[Job]) -> Iterable[Job]:
    """Make one job of the slow tests of several parts: one run of pytest keeps the cores busy."""
    if not slow:
        return
    files = tuple(test for job in slow for test in job.arguments)
    seconds = sum(job.seconds or 0 for job in slow) - START_SECONDS * (len(slow) - 1)
    covers = tuple(name for job in slow for name in job.covers)
    reasons = dict.fromkeys(job.why for job in slow)
    label = "" if len(slow) > 1 else slow[0].label
    why = "; ".join(reasons)
    yield Job("slow", files, why, seconds, label=label, covers=covers)


def table_of(jobs: Sequence[Job]) -> Iterable[str]:
    """Yield a line for each job: its name, its last duration, its reason."""
    for job in jobs:
        seconds = "?" if job.seconds is None else f"{job.seconds:.0f} s"
        yield f"  {job.name:32} {seconds:>7}  {job.why}"
