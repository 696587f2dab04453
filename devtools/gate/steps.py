"""The steps of a gate, and the run of a plan's jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from devtools import distributions, packages, suites
from devtools.gate.job import Job
from devtools.process import Interrupted, adding, attempt

SHORT = "AGL_TESTS_OF_A_GATE"
"""Environment variable: leaves the tests marked ``full`` out; tests/conftest.py reads it."""
CHECKS = ("types", "lint")

Step = Callable[[Sequence[str]], None]


def test(files: Sequence[str]) -> None:
    """Run ``python3 dev.py test FILES``; all unmarked tests of a chosen file may be gone."""
    suites.default(files, may_be_empty=bool(files))


def slow(tests: Sequence[str]) -> None:
    suites.run_light(tests, suites.SLOW)


def wheels(tests: Sequence[str]) -> None:
    """Run light test files on wheels, as a full run does."""
    suites.run_light(tests, suites.NOT_HEAVY)


def alone(modules: Sequence[str]) -> None:
    """Try light packages in environments of their own; without names, all of them."""
    chosen = packages.named(modules) if modules else packages.light_plugins()
    distributions.smoke_alone(chosen)


def contract(tests: Sequence[str]) -> None:
    """Try every plugin in the environment of all packages, and the suites in short form."""
    distributions.try_all()
    if tests:
        suites.run_light(tests, suites.UNMARKED, "-p", "devtools.gate.contract")


def affected(tests: Sequence[str]) -> None:
    """Run test files of one heavy package in its environment."""
    (name,) = {test.split("/")[2] for test in tests}
    (package,) = packages.named([name])
    suites.run_heavy(package, tests)


def package(modules: Sequence[str]) -> None:
    """Run all tests of a package that has an environment of its own or tests marked ``heavy``."""
    (chosen,) = packages.named(modules)
    if chosen.heavy:
        suites.run_heavy(chosen)
    if suites.has_heavy_tests(chosen):
        suites.run_in_earnest(chosen)


def unmarked(modules: Sequence[str]) -> None:
    """Run the unmarked tests of a heavy package."""
    (chosen,) = packages.named(modules)
    suites.run_heavy(chosen, marks=suites.UNMARKED)


def example(names: Sequence[str]) -> None:
    (name,) = names
    suites.run_example(name)


STEPS: Mapping[str, Step] = {
    step.__name__: step
    for step in (test, slow, wheels, alone, contract, affected, package, unmarked, example)
}


def _run(step: Step, job: Job) -> None:
    with adding({SHORT: "" if job.whole else "yes"}):
        step(job.arguments)


def run(
    groups: Sequence[Sequence[Job]], commands: Mapping[str, Step]
) -> tuple[dict[str, float], list[str]]:
    """Run jobs; in each group those that may run beside others come last.

    Args:
        groups: Groups of jobs, one after the other.
        commands: The commands of ``dev.py`` by name: steps beside :data:`STEPS`, whose `slow` runs
            on wheels.

    Returns:
        The duration of each job by its name, in seconds, and the names of the jobs that failed.

    Raises:
        Interrupted: Ctrl+C was pressed; with what was known until then.
    """
    steps = {**commands, **STEPS}
    durations: dict[str, float] = {}
    failed: list[str] = []
    for group in groups:
        # Checks come first: they are short, and nothing in them has a deadline.
        for jobs in (
            [j for j in group if j.step in CHECKS],
            [j for j in group if j.step not in CHECKS],
        ):
            try:
                took, bad = attempt(
                    {job.name: partial(_run, steps[job.step], job) for job in jobs},
                    side_by_side=[job.name for job in jobs if job.beside],
                )
            except Interrupted as error:
                durations |= error.durations
                failed += [name for name in error.failed if name in durations]
                names = (job.name for group in groups for job in group)
                left = [name for name in names if name not in durations]
                raise Interrupted(durations, failed + left) from error
            durations |= took
            failed += bad
    return durations, failed
