"""Plans a gate: the jobs that a change requires, and the deep suites that the time left is for.

A plan depends on the tree, the recorded run and the record alone, so it is the same wherever it is
made: after a change has landed, the plan of its commit says what its gate ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from devtools import newcomer, packages, suites, walk_docs
from devtools.gate.parts import Part, has_heavy_tests
from devtools.gate.runs import WHEELS, Record
from devtools.gate.selection import Context, Reason, choose

BUDGET_MINUTES = 30
"""Time of a gate whose change requires less: what is left goes to the deep suites."""
LIMIT_MINUTES = 40
"""Time of a gate whose change requires more. What it leaves out is owed: the next gates run it.

CI ends at 90 minutes, and its machine is at times half as fast as the one of the recorded times.
"""
OWABLE = ("package", "example", "docs", "slow")
"""Steps that a gate may owe: deep suites, beside which the contract of the same parts is tested."""
UNKNOWN_SECONDS = 300
"""Assumed time of a job that never ran."""
START_SECONDS = 20
"""Time of a run of pytest beside its tests: it collects twice, the second time for ``timing``."""
ENVIRONMENT_SECONDS = 60
"""Time of the installation of a heavy package from a cache of its libraries."""
CORES = 2
"""Cores of CI's machine. A plan is made for it, wherever it is made."""
NEVER = date(2000, 1, 1)
RULES = "agl_store_kit"
"""Package with the rules of rollouts, whose tests must run every line of them (step lifecycle)."""
VLLM_NEEDS = "tests/envs/vllm"
FRAMEWORKS = "tests/frameworks/"
SITE_SETTINGS = ("mkdocs.yml", "devtools/docs_site/")


@dataclass(frozen=True)
class Job:
    """One thing that a gate runs.

    Attributes:
        step: Name of a function of :mod:`devtools.gate.jobs` or a command of ``dev.py``.
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
    planner = _Planner(context, record)
    required, owed = planner.within(limit, tuple(planner.required()))
    covered = {name for job in (*required, *owed) for name in job.covers}
    # Coverage is measured in a full run only; the tests that it runs are in other suites, too.
    deep = (job for job in planner.deep() if job.step != "cover")
    waiting = sorted(deep, key=planner.order)
    rotation: list[Job] = []
    later: list[Job] = []
    for job in (*planner.affected(), *waiting):
        if job.covers and covered.issuperset(job.covers):
            continue
        if duration((*required, *rotation, job)) <= budget:
            rotation.append(job)
            covered.update(job.covers)
        else:
            later.append(job)
    parts = tuple(sorted(planner.changed))
    return Plan(
        planner.with_full_tests(required),
        planner.with_full_tests(rotation),
        tuple(later),
        owed,
        planner.chosen,
        parts,
        len(context.changes.files),
    )


def everything(context: Context, record: Record) -> tuple[Job, ...]:
    """Plan a full run: the checks and every deep suite."""
    planner = _Planner(context, record)
    cover, *others = planner.deep()
    rest = (job for job in others if not set(cover.covers).issuperset(job.covers))
    jobs = (*planner.checks("a full run"), cover, *rest)
    return tuple(replace(job, whole=True) for job in jobs)


def rest(context: Context, record: Record) -> tuple[Job, ...]:
    """Plan the end of a full run: what failed in it or was left, and no gate has run since."""
    left = record.owed.intersection(record.full.failed) if record.full else frozenset()
    jobs = [job for job in everything(context, record) if not left.isdisjoint(_owed_for(job))]
    covered = {name for job in jobs for name in job.covers}
    wheels = _Planner(context, record).wheels() if WHEELS in left - covered else ()
    return (*jobs, *wheels)


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


def _owed_for(job: Job) -> Iterable[str]:
    """Return the debts of which each makes a job due: those of the slow tests pay theirs."""
    return ("cover",) if job.step == "cover" else debts_of([job])


def _joined(slow: Sequence[Job]) -> Iterable[Job]:
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


class _Planner:
    """Makes jobs.

    Args:
        context: The tree, the recorded run and the change.
        record: When which job ran, and how long it took.
    """

    def __init__(self, context: Context, record: Record) -> None:
        self._context = context
        self._tree = context.tree
        self._record = record
        self.changed = context.changed_parts()
        self.chosen = choose(context)

    # -- what a change requires --------------------------------------------------------------------

    def required(self) -> Iterable[Job]:
        yield from self.checks("always")
        yield from self._alone()
        yield self._contract()
        yield from self._test()
        if RULES in self.changed:
            yield self._job("lifecycle", why=f"{RULES} changed", covers=("lifecycle",))
        slow = (self._slow(part, "changed") for part in self.changed.values())
        yield from _joined([job for job in slow if job])
        yield from self._heavy()
        yield from self._pages()

    def within(
        self, limit: float, required: tuple[Job, ...]
    ) -> tuple[tuple[Job, ...], tuple[Job, ...]]:
        """Return the required jobs that fit into a limit, and those that are owed.

        What an earlier gate owes is required, too. First is left out what saves the most time: of
        heavy packages at first only what is beside their unmarked tests, then debts, then the
        unmarked tests.

        Args:
            limit: Seconds.
            required: What the change requires.
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
                jobs[place : place + 1] = self._short_form(job)
        short = [job for job in jobs if job.step == "unmarked"]
        for job in sorted(short, key=lambda job: job.seconds or 0, reverse=True):
            if duration(jobs) > limit:
                jobs.remove(job)
        return tuple(jobs), tuple(owed)

    def _debts(self, required: Iterable[Job]) -> list[Job]:
        """Return the jobs of what is owed and not required anyway."""
        present = {name for job in required for name in job.covers}
        debts: list[Job] = []
        for job in (*self.wheels(), *self.deep()):
            if present.issuperset(job.covers) or self._record.owed.isdisjoint(_owed_for(job)):
                continue
            debts.append(replace(job, why="owed by an earlier gate"))
            present.update(job.covers)
        return debts

    def _saved_by_owing(self, job: Job) -> float:
        return duration([job]) - duration(self._short_form(job))

    def _short_form(self, job: Job) -> Iterable[Job]:
        """Yield what runs if a job is owed: the unmarked tests of a heavy package."""
        part = self._tree.parts.get(job.label)
        if job.step == "package" and part is not None and part.heavy:
            tests = self._tree.tests_of(part)
            known = [used for test in tests if (used := self._context.tests.tests.get(test))]
            seconds = ENVIRONMENT_SECONDS + sum(used.seconds for used in known)
            yield replace(job, step="unmarked", seconds=seconds, covers=())

    def wheels(self) -> Iterable[Job]:
        """The light test files that failed in the last full run, which alone runs all on wheels."""
        known = self._tree.test_files
        full = self._record.full
        tests = tuple(test for test in full.tests if test in known) if full else ()
        if tests:
            seconds = self._of_tests(tests)
            yield Job("wheels", tests, seconds=seconds, covers=(WHEELS,), whole=True)

    def with_full_tests(self, jobs: Iterable[Job]) -> tuple[Job, ...]:
        """Let the jobs of suites that failed in a full run, and are owed since, run them whole.

        A test that only a full run has may be what failed there.
        """
        full = self._record.full
        failed = self._record.owed.intersection(full.failed) if full else frozenset[str]()
        return tuple(
            replace(job, whole=job.whole or not failed.isdisjoint(debts_of([job]))) for job in jobs
        )

    def checks(self, why: str) -> Iterable[Job]:
        """Jobs of every gate: lint beside types, and the archives."""
        yield self._job("types", why=why, beside=True)
        yield self._job("lint", why=why, beside=True)
        yield self._job("dist", why=why)

    def _alone(self) -> Iterable[Job]:
        """Each light package alone, if it or one that it requires changed."""
        changed = set(self._context.changed_sources())
        modules = tuple(
            part.name
            for part in self._tree.parts.values()
            if part.package and not part.heavy and part.package != packages.core()
            if part.name in changed or part.requires & changed
        )
        if modules:
            why = f"{len(modules)} light packages changed or require one that did"
            yield self._job("alone", modules, why=why, label="of the change")

    def _contract(self) -> Job:
        """The contract of every package whose tests do not all run: load, build, the suites."""
        files = tuple(
            test
            for test, part in self._tree.test_files.items()
            if part.package and not part.heavy and part.name != "agl_testing"
            if test not in self.chosen and self._tree.has_suite(test)
        )
        why = f"plugins of all packages; {len(files)} suites of those whose tests do not run"
        return self._job("contract", files, why=why)

    def _test(self) -> Iterable[Job]:
        """The chosen files, by the command that runs the default suite.

        It has no arguments if the whole suite is chosen.
        """
        tests = [test for test in self.chosen if not self._tree.test_files[test].heavy]
        suite = {test for test, part in self._tree.test_files.items() if _is_default(part)}
        if suite and suite.issubset(tests):
            yield self._job("test", why="all of the default suite is chosen", covers=("test",))
            tests = [test for test in tests if test not in suite]
        if not tests:
            return
        own = sum(self._tree.test_files[test].name in self.changed for test in tests)
        others = len(tests) - own
        why = f"`dev.py test`: {own} files of changed parts, {others} that use what changed"
        apart = self._apart()
        covers = apart.covers if set(tests).issuperset(apart.arguments) else ()
        seconds = self._of_tests(tests)
        yield Job("test", tuple(tests), why, seconds, label="of the change", covers=covers)

    def _heavy(self) -> Iterable[Job]:
        """The heavy packages and the examples that changed or whose requirements did."""
        for part in self._tree.parts.values():
            why = self._why_heavy(part)
            if why and (part.heavy or has_heavy_tests(part)):
                yield self._package(part, why)
        for name in suites.examples_with_environments():
            part = self._tree.parts.get(f"examples/{name}")
            requirements = f"tests/envs/examples/{name}.txt"
            why = self._why_heavy(part) if part else ""
            if requirements in self._context.changes.files:
                why = f"{requirements} changed"
            if why:
                yield self._example(name, why)

    def _why_heavy(self, part: Part) -> str:
        """Return why the heavy tests of a part are required; empty if they are not."""
        if part.name in self.changed:
            return "changed"
        for place, word in ((FRAMEWORKS, '"frameworks"'), (VLLM_NEEDS, suites.VLLM_PYTHON)):
            if any(file.startswith(place) for file in self._context.changes.files):
                mine = [f for f in self._tree.files if f.startswith(part.places)]
                if any(f.endswith(".py") and word in self._tree.text(f) for f in mine):
                    return f"uses {place}"
        return ""

    def _pages(self) -> Iterable[Job]:
        files = set(self._context.files())
        walked = {page.as_posix() for page in (*walk_docs.pages(), *newcomer.PATH)}
        pages = tuple(sorted(files & walked))
        if pages:
            seconds = 60.0 * (1 + len(pages))
            yield Job("docs", pages, "changed pages", seconds, beside=True, label="of the change")
        if any(file.endswith(".md") or file.startswith(SITE_SETTINGS) for file in files):
            yield self._job("site", why="its pages changed", beside=True)
        tested = packages.with_requirements([packages.FOR_USERS, "agl_algo_apo", "agl_testing"])
        required = {f"plugins/{p.label}/pyproject.toml" for p in tested}
        if required & files or "project" in self._context.changes.tables:
            yield self._job("lowest", why="requirements changed", covers=("lowest",))

    def affected(self) -> Iterable[Job]:
        """Yield the tests of heavy packages that use what changed, the shortest first.

        Their contract is tested in any case. Their own environments take minutes, so these tests
        are run only while there is time.
        """
        jobs: list[Job] = []
        for part in self._tree.parts.values():
            every = self._tree.tests_of(part)
            tests = [test for test in every if test in self.chosen]
            if part.heavy and part.package and tests and part.name not in self.changed:
                why = f"{len(tests)} test files that use what changed"
                whole = tests == every and not has_heavy_tests(part)
                covers = (f"package {part.name}",) if whole else ()
                beside = not part.package.exclusive
                job = Job("affected", tuple(tests), why, None, beside, part.name, covers)
                seconds = self._record.seconds(job.name) or self._of_heavy_tests(tests)
                jobs.append(replace(job, seconds=seconds))
        return sorted(jobs, key=lambda job: job.seconds or 0)

    # -- deep suites -------------------------------------------------------------------------------

    def deep(self) -> Iterable[Job]:
        """Yield every deep suite as a job; the first one covers all suites of light tests."""
        light = [self._apart()]
        for part in self._tree.parts.values():
            slow = self._slow(part, self._when(f"slow {part.name}"))
            light += [slow] if slow else []
        covers = ("cover", "test", WHEELS, *(name for job in light for name in job.covers))
        yield self._job("cover", why=self._when("cover"), covers=covers)
        light.append(self._job("test", why=self._when("test"), covers=("test",)))
        yield from light
        for step in ("lifecycle", "docs", "lowest", "alone"):
            yield self._job(step, why=self._when(step), covers=(step,))
        for part in self._tree.parts.values():
            if part.heavy or has_heavy_tests(part):
                yield self._package(part, self._when(f"package {part.name}"))
        for name in suites.examples_with_environments():
            yield self._example(name, self._when(f"example {name}"))

    def order(self, job: Job) -> tuple[bool, date, str]:
        """Order suites: slow tests of chosen files first, then what ran longest ago."""
        uses = job.step == "slow" and not self.chosen.keys().isdisjoint(job.arguments)
        return not uses, self.last_run(job), job.name

    def last_run(self, job: Job) -> date:
        runs = [self._record.jobs[name].on for name in job.covers if name in self._record.jobs]
        return min(runs, default=NEVER)

    def _when(self, name: str) -> str:
        run = self._record.jobs.get(name)
        return f"last run {run.on}" if run else "not run since it is recorded"

    def _apart(self) -> Job:
        """The tests of light packages that are not part of the default suite."""
        tests = [
            test
            for test, part in self._tree.test_files.items()
            if not part.heavy and not _is_default(part)
        ]
        seconds = self._of_tests(tests)
        why = self._when("test apart")
        return Job("test", tuple(tests), why, seconds, label="apart", covers=("test apart",))

    def _slow(self, part: Part, why: str) -> Job | None:
        tests = [
            test
            for test in self._tree.tests_of(part)
            if not part.heavy and self._tree.is_slow(test)
        ]
        if not tests:
            return None
        name = f"slow {part.name}"
        seconds = self._record.seconds(name) or self._of_tests(tests, slow=True)
        return Job("slow", tuple(tests), why, seconds, label=part.name, covers=(name,))

    def _package(self, part: Part, why: str) -> Job:
        assert part.package is not None
        beside = not part.package.exclusive
        covers = (f"package {part.name}",)
        return self._job("package", (part.name,), why=why, beside=beside, covers=covers)

    def _example(self, name: str, why: str) -> Job:
        covers = (f"example {name}",)
        return self._job("example", (name,), why=why, beside=True, covers=covers)

    def _job(
        self,
        step: str,
        arguments: tuple[str, ...] = (),
        *,
        why: str,
        beside: bool = False,
        label: str = "",
        covers: tuple[str, ...] = (),
    ) -> Job:
        """Make a job that takes as long as last time; one that covers a suite has its label."""
        label = label or (arguments[0] if covers and arguments else "")
        job = Job(step, arguments, why, beside=beside, label=label, covers=covers)
        return replace(job, seconds=self._record.seconds(job.name))

    def _of_heavy_tests(self, tests: Sequence[str]) -> float:
        """Estimate the time of test files of one heavy package, its environment included."""
        recorded = [self._context.tests.tests.get(test) for test in tests]
        known = [used.seconds + used.slow_seconds for used in recorded if used]
        return ENVIRONMENT_SECONDS + sum(known) if known else UNKNOWN_SECONDS

    def _of_tests(self, tests: Sequence[str], *, slow: bool = False) -> float:
        """Estimate the time of test files from the recorded run."""
        recorded = (self._context.tests.tests.get(test) for test in tests)
        total = sum((used.slow_seconds if slow else used.seconds) for used in recorded if used)
        return START_SECONDS + total / (2 * CORES)


def _is_default(part: Part) -> bool:
    """Whether the tests of a part are in the default suite."""
    return part.package is None or part.package.tested_by_default


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


def table_of(jobs: Sequence[Job]) -> Iterable[str]:
    """Yield a line for each job: its name, its last duration, its reason."""
    for job in jobs:
        seconds = "?" if job.seconds is None else f"{job.seconds:.0f} s"
        yield f"  {job.name:32} {seconds:>7}  {job.why}"
