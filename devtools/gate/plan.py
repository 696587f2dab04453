"""Plans a gate: the jobs that a change requires, and the deep suites that the time left is for.

A plan depends on the tree, the recorded run and the record alone, so it is the same wherever it is
made: after a change has landed, the plan of its commit says what its gate ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date

from devtools.gate.job import Job, debts_of, duration, owed_for, table_of
from devtools.gate.maker import Maker
from devtools.gate.runs import WHEELS, Record
from devtools.gate.selection import Context, Reason

BUDGET_MINUTES = 30
"""Time of a gate whose change requires less: what is left goes to the deep suites."""
LIMIT_MINUTES = 40
"""Time of a gate whose change requires more. What it leaves out is owed: the next gates run it.

CI ends at 90 minutes, and its machine is at times half as fast as the one of the recorded times.
"""
OWABLE = ("package", "example", "docs", "slow")
"""Steps that a gate may owe: deep suites, beside which the contract of the same parts is tested."""
NEVER = date(2000, 1, 1)


@dataclass(frozen=True)
class Plan:
    """The jobs of a gate.

    Attributes:
        required: Jobs that the change requires.
        rotation: Jobs for the time left: tests of heavy packages that use a changed file, slow
            tests in chosen files, then deep suites, those that ran longest ago first.
        later: Jobs for which no time is left, in the same order.
        owed: Jobs that the change requires, and that the limit leaves to the next gates.
        chosen: The chosen test files, each with its reason.
        parts: Names of the changed parts.
        files: How many files changed.
    """

    required: tuple[Job, ...]
    rotation: tuple[Job, ...]
    later: tuple[Job, ...]
    owed: tuple[Job, ...]
    chosen: Mapping[str, Reason]
    parts: tuple[str, ...]
    files: int


def gate(
    context: Context,
    record: Record,
    budget: float = 60 * BUDGET_MINUTES,
    limit: float = 60 * LIMIT_MINUTES,
) -> Plan:
    """Plan the gate of a change.

    Args:
        context: The tree, the recorded run and the change.
        record: When which job ran, and how long it took.
        budget: Time up to which deep suites are added, in seconds.
        limit: Time up to which deep suites are required, in seconds.
    """
    maker = Maker(context, record)
    planner = _Planner(maker, record)
    required, owed = planner.within(limit, tuple(maker.required()))
    covered = {name for job in (*required, *owed) for name in job.covers}
    # Coverage is measured in a full run only; the tests that it runs are in other suites, too.
    deep = (job for job in maker.deep() if job.step != "cover")
    waiting = sorted(deep, key=planner.order)
    rotation: list[Job] = []
    later: list[Job] = []
    for job in (*maker.affected(), *waiting):
        if job.covers and covered.issuperset(job.covers):
            continue
        if duration((*required, *rotation, job)) <= budget:
            rotation.append(job)
            covered.update(job.covers)
        else:
            later.append(job)
    parts = tuple(sorted(maker.changed))
    return Plan(
        planner.with_full_tests(required),
        planner.with_full_tests(rotation),
        tuple(later),
        owed,
        maker.chosen,
        parts,
        len(context.changes.files),
    )


def everything(context: Context, record: Record) -> tuple[Job, ...]:
    """Plan a full run: the checks and every deep suite."""
    maker = Maker(context, record)
    cover, *others = maker.deep()
    rest = (job for job in others if not set(cover.covers).issuperset(job.covers))
    jobs = (*maker.checks("a full run"), cover, *rest)
    return tuple(replace(job, whole=True) for job in jobs)


def rest(context: Context, record: Record) -> tuple[Job, ...]:
    """Plan the end of a full run: what failed in it or was left, and no gate has run since."""
    left = record.owed.intersection(record.full.failed) if record.full else frozenset()
    jobs = [job for job in everything(context, record) if not left.isdisjoint(owed_for(job))]
    covered = {name for job in jobs for name in job.covers}
    wheels = Maker(context, record).wheels() if WHEELS in left - covered else ()
    return (*jobs, *wheels)


class _Planner:
    """Chooses among jobs by the time that a gate may take.

    Args:
        maker: Makes the jobs.
        record: When which job ran, and what is owed.
    """

    def __init__(self, maker: Maker, record: Record) -> None:
        self._maker = maker
        self._record = record

    def within(
        self, limit: float, required: tuple[Job, ...]
    ) -> tuple[tuple[Job, ...], tuple[Job, ...]]:
        """Return the required jobs that fit into a limit, and those that are owed.

        What an earlier gate owes is required, too. First is left out what saves the most time: of
        heavy packages at first only what is beside their unmarked tests, then debts, then the
        unmarked tests.

        Args:
            limit: Seconds.
            required: The jobs that the change requires.
        """
        debts = self._debts(required)
        jobs = [*required, *debts]
        owed: list[Job] = []
        for group in ([job for job in of if job.step in OWABLE] for of in (required, debts)):
            for job in sorted(group, key=self._saved_by_owing, reverse=True):
                if duration(jobs) <= limit or self._saved_by_owing(job) <= 0:
                    break
                owed.append(job)
                place = jobs.index(job)
                jobs[place : place + 1] = self._maker.short_form(job)
        short = [job for job in jobs if job.step == "unmarked"]
        for job in sorted(short, key=lambda job: job.seconds or 0, reverse=True):
            if duration(jobs) > limit:
                jobs.remove(job)
        return tuple(jobs), tuple(owed)

    def _debts(self, required: Iterable[Job]) -> list[Job]:
        """Return the jobs of what is owed and not required anyway."""
        present = {name for job in required for name in job.covers}
        debts: list[Job] = []
        for job in (*self._maker.wheels(), *self._maker.deep()):
            if present.issuperset(job.covers) or self._record.owed.isdisjoint(owed_for(job)):
                continue
            debts.append(replace(job, why="owed by an earlier gate"))
            present.update(job.covers)
        return debts

    def _saved_by_owing(self, job: Job) -> float:
        return duration([job]) - duration(self._maker.short_form(job))

    def with_full_tests(self, jobs: Iterable[Job]) -> tuple[Job, ...]:
        """Let the jobs of suites that failed in a full run, and are owed since, run them whole.

        A test that only a full run has may be what failed there.
        """
        full = self._record.full
        failed = self._record.owed.intersection(full.failed) if full else frozenset[str]()
        return tuple(
            replace(job, whole=job.whole or not failed.isdisjoint(debts_of([job]))) for job in jobs
        )

    def order(self, job: Job) -> tuple[bool, date, str]:
        """Order suites: slow tests of chosen files first, then what ran longest ago."""
        uses = job.step == "slow" and not self._maker.chosen.keys().isdisjoint(job.arguments)
        return not uses, self.last_run(job), job.name

    def last_run(self, job: Job) -> date:
        runs = [self._record.jobs[name].on for name in job.covers if name in self._record.jobs]
        return min(runs, default=NEVER)


def lines_of(plan: Plan, base: str) -> Iterable[str]:
    """Yield the lines that show a plan."""
    yield f"changed since {base[:7]}: {plan.files} files; {', '.join(plan.parts) or 'no part'}"
    yield f"test files chosen: {len(plan.chosen)}"
    for rule, count in Counter(reason.rule for reason in plan.chosen.values()).items():
        yield f"  {count} {rule}"
    yield "required:"
    yield from table_of(plan.required)
    if plan.owed:
        yield f"owed, since {LIMIT_MINUTES} minutes are the limit; the next gates run it:"
        yield from table_of(plan.owed)
    yield "while there is time:"
    yield from table_of(plan.rotation)
    if plan.later:
        yield f"left for later gates: {len(plan.later)} suites; --tests names them"
    required, all_of_it = duration(plan.required), duration((*plan.required, *plan.rotation))
    yield f"about {required / 60:.0f} minutes required, {all_of_it / 60:.0f} in all"
