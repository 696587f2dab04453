"""Makes the jobs that a change requires, and those of the deep suites."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from devtools import newcomer, packages, suites, walk_docs
from devtools.gate.job import CORES, START_SECONDS, UNKNOWN_SECONDS, Job, joined
from devtools.gate.parts import Part, has_heavy_tests
from devtools.gate.runs import WHEELS, Record
from devtools.gate.selection import Context, choose

ENVIRONMENT_SECONDS = 60
"""Time of the installation of a heavy package from a cache of its libraries."""
RULES = "agl_store_kit"
"""Package with the rules of rollouts, whose tests must run every line of them (step lifecycle)."""
VLLM_NEEDS = "tests/envs/vllm"
FRAMEWORKS = "tests/frameworks/"
SITE_SETTINGS = ("mkdocs.yml", "devtools/docs_site/")


class Maker:
    """Makes jobs.

    Args:
        context: The tree, the recorded run and the change.
        record: When which job ran, and how long it took.

    Attributes:
        changed: The parts that changed, by name.
        chosen: The chosen test files, each with its reason.
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
        yield from joined([job for job in slow if job])
        yield from self._heavy()
        yield from self._pages()

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

    def short_form(self, job: Job) -> Iterable[Job]:
        """Yield what runs if a job is owed: the unmarked tests of a heavy package."""
        part = self._tree.parts.get(job.label)
        if job.step == "package" and part is not None and part.heavy:
            tests = self._tree.tests_of(part)
            known = [used for test in tests if (used := self._context.tests.tests.get(test))]
            seconds = ENVIRONMENT_SECONDS + sum(used.seconds for used in known)
            yield replace(job, step="unmarked", seconds=seconds, covers=())

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

    def wheels(self) -> Iterable[Job]:
        """The light test files that failed in the last full run, which alone runs all on wheels."""
        known = self._tree.test_files
        full = self._record.full
        tests = tuple(test for test in full.tests if test in known) if full else ()
        if tests:
            seconds = self._of_tests(tests)
            yield Job("wheels", tests, seconds=seconds, covers=(WHEELS,), whole=True)

    # -- parts of both ----------------------------------------------------------------------------

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
