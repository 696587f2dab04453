"""Records what each test file uses: ``python3 dev.py record``.

Unmarked tests run under coverage with :mod:`devtools.gate.recorder`. A failed test does not keep
the recording from being written, but it fails the command.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from devtools import distributions, packages, suites
from devtools.environments import ENVS, install
from devtools.gate import test_map
from devtools.gate.changes import tracked
from devtools.gate.parts import text_of
from devtools.gate.test_map import TestMap, Used
from devtools.packages import Package
from devtools.process import ROOT, run, say

FOLDER = ENVS / "recording"
LIGHT = "light"
SLOW = "slow"
TRACED = "ignore:Exception ignored in thread started by:pytest.PytestUnraisableExceptionWarning"
"""What to make of a thread that could not trace itself, since another one began to at that moment:
CPython 3.11 raises for it, and pytest fails the test that ran (``threading._trace_hook``)."""
RECORDER = ("-p", "devtools.gate.recorder", "-W", TRACED)
COVERAGE = "coverage>=7.13"
CONTEXT = "RECORDED_TEST"
"""Environment variable with the test file that runs, for the coverage of child processes.

Not `AGL_...`: some tests start programs without the variables of agl.
"""
NOTES = "RECORDING_NOTES"
"""Environment variable with the folder that gets what coverage does not know."""
SETTINGS = """\
[run]
source_pkgs =
{packages}
source_dirs =
  {root}/examples
  {root}/devtools
branch = true
parallel = true
concurrency = thread
context = ${{{context}-}}
data_file = {folder}/data
omit = {root}/devtools/gate/rec*
disable_warnings = no-data-collected, module-not-imported, module-not-measured, already-imported
"""


class Note(TypedDict):
    """Observations of the recorder in one process; see :mod:`devtools.gate.recorder`."""

    seconds: Mapping[str, float]
    read: Mapping[str, Sequence[str]]
    forks: Sequence[str]
    failed: Sequence[str]


def record(names: Sequence[str]) -> None:
    """Record the tests of light packages, of heavy ones, or of all.

    Args:
        names: Names of heavy packages, and ``light``; without names, all.
    """
    heavy = [package for package in packages.all_plugins() if package.heavy]
    failed: list[str] = []
    for name in names or [LIGHT, *(package.label for package in heavy)]:
        run_tests = _light() if name == LIGHT else _heavy(*packages.named([name]))
        found, passed = _recorded(name, run_tests)
        test_map.write(test_map.read().merged(found))
        say(f"recorded {len(found.tests)} test files of {name}")
        failed += [] if passed else [name]
    if failed:
        sys.exit(f"tests failed while they were recorded: {', '.join(failed)}")


@dataclass(frozen=True)
class Recorded:
    """Tests to record.

    Attributes:
        python: The Python of their environment.
        run: Runs those that have given marks, with more environment variables.
        has_slow: Whether some are marked ``slow``.
    """

    python: Path
    run: Callable[[str, Mapping[str, str]], None]
    has_slow: bool


def _light() -> Recorded:
    folders = ("core", "devtools", "docs", "e2e", "examples")
    places = [ROOT / "tests" / folder for folder in folders]
    places += [p.tests for p in packages.light_plugins() if p.tests.exists()]

    def run_tests(marks: str, env: Mapping[str, str]) -> None:
        suites.run_light(places, marks, *RECORDER, env=env)

    return Recorded(distributions.light_together(), run_tests, has_slow=True)


def _heavy(package: Package) -> Recorded:
    python = distributions.alone(package)
    install(python.parents[1], COVERAGE)

    def run_tests(marks: str, env: Mapping[str, str]) -> None:
        processes = ("-n", str(suites.WORKERS) if package.parallel else "0")
        arguments = ("-m", marks, *RECORDER, *processes, package.tests)
        suites.pytest(suites.installed(python), *arguments, env=suites.tests_on_path() | {**env})

    return Recorded(python, run_tests, suites.mentioned_in_tests(package, "mark.slow"))


def _recorded(name: str, tests: Recorded) -> tuple[TestMap, bool]:
    """Run unmarked and slow tests; return what they used, and whether they passed.

    Slow tests run without coverage, since some hold a server to its cost. The data of coverage stay
    in a folder of their own, for reports.
    """
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    unmarked, slow = unmarked_data(name), FOLDER / name / SLOW
    for folder in (unmarked, slow):
        folder.mkdir(parents=True)
    config = unmarked / "coveragerc"
    measured = "\n".join(f"  {package.module}" for package in packages.everything())
    config.write_text(
        SETTINGS.format(packages=measured, root=ROOT, folder=unmarked, context=CONTEXT)
    )
    measure = {NOTES: str(unmarked), "COVERAGE_PROCESS_START": str(config)}
    passed = _passes(tests, suites.UNMARKED, measure)
    if tests.has_slow:
        passed = _passes(tests, suites.SLOW, {NOTES: str(slow)}) and passed
    output = unmarked / "executed"
    run(tests.python, "-P", ROOT / "devtools/gate/contexts.py", unmarked, output)
    executed = json.loads(output.read_text())
    return merged(executed, _notes(unmarked), _notes(slow)), passed


def _passes(tests: Recorded, marks: str, env: Mapping[str, str]) -> bool:
    try:
        tests.run(marks, env)
    except SystemExit:
        return False
    return True


def failed_tests() -> list[str]:
    """Return the light test files of the last recording of which a test or the import failed."""
    folders = (unmarked_data(LIGHT), FOLDER / LIGHT / SLOW)
    notes = (note for folder in folders if folder.exists() for note in _notes(folder))
    return sorted({test for note in notes for test in note["failed"]})


def _notes(folder: Path) -> list[Note]:
    return [json.loads(path.read_text()) for path in folder.glob("*.json")]


def unmarked_data(name: str) -> Path:
    """Return the folder of coverage's data of the unmarked tests of a recording."""
    return FOLDER / name / "unmarked"


def merged(
    executed: Mapping[str, Sequence[str]],
    unmarked: Iterable[Note],
    slow: Iterable[Note],
) -> TestMap:
    """Return what each test file used; of one that failed it is not known.

    Args:
        executed: Paths of measured files that each test file executed.
        unmarked: Notes of the recorder of the processes that ran unmarked tests.
        slow: Those of the processes that ran slow tests.
    """
    known = set(tracked())
    folders = {parent.as_posix() for file in known for parent in Path(file).parents}
    files: defaultdict[str, set[str]] = defaultdict(set)
    listed: defaultdict[str, set[str]] = defaultdict(set)
    seconds = (defaultdict[str, float](float), defaultdict[str, float](float))
    forks: set[str] = set()
    failed: set[str] = set()
    for test, paths in executed.items():
        files[test] |= known.intersection(map(in_repository, paths))
    for total, notes in zip(seconds, (list(unmarked), list(slow)), strict=True):
        for note in notes:
            forks |= set(note["forks"])
            failed |= set(note["failed"])
            for test, duration in note["seconds"].items():
                total[test] += duration
            for test, paths in note["read"].items():
                files[test] |= known.intersection(map(in_repository, paths))
                listed[test] |= folders.intersection(paths)
    tests = {
        test: Used(
            frozenset(files[test] - {test}),
            frozenset(listed[test]),
            test in forks,
            seconds[0][test],
            seconds[1][test],
        )
        for test in sorted({*seconds[0], *seconds[1]} & known - failed)
    }
    names = {name for used in tests.values() for name in used.files} | set(tests)
    return TestMap(tests, {name: test_map.digest(text_of(name)) for name in sorted(names)})


def in_repository(path: str) -> str:
    """Return the path in the repository of a file that is installed or is in the working tree."""
    _, installed, below = path.rpartition("/site-packages/")
    if not installed:
        return path.removeprefix(f"{ROOT}/")
    module = below.split("/")[0]
    return below if module == packages.CORE_MODULE else f"plugins/{module}/src/{below}"
