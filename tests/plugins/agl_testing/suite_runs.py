"""Runs components under conformance suites, many of them in one separate pytest process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.processes import unmeasured

HERE = Path(__file__).parent

SLIPS = re.compile(
    r"^E +(TypeError|AttributeError|NameError)|natively supported|fixture '", re.MULTILINE
)
"""A failure with such a text comes from a mistake in a wrong component, not from the suite."""


class Subject(NamedTuple):
    """A component under its suite: how the class of its tests is written."""

    name: str
    component: type
    suite: str
    fixture: str
    flags: Sequence[str] = ()
    value: str = "{fake}()"
    """What the fixture returns."""
    more: str = ""
    """Further lines of the class."""

    @property
    def source(self) -> str:
        value = self.value.format(fake=self.component.__name__)
        return f"""
class Test_{self.name}(agl_testing.{self.suite}):
    flags = frozenset({sorted(self.flags)!r})

    @pytest.fixture
    def {self.fixture}(self):
        from {self.component.__module__} import {self.component.__name__}
        return {value}
{self.more}"""


Outcomes = dict[tuple[str, str], list[tuple[str, str]]]
"""Outcome and output of each run of a test, by the name of the subject and of the test."""

STOP_AT_THE_FIRST_FAILURE = f"""
import re
import pytest

SLIPS = re.compile({SLIPS.pattern!r}, re.MULTILINE)
failed = set()

def pytest_runtest_logreport(report):
    if report.failed and not SLIPS.search(report.longreprtext):
        failed.add(report.nodeid.split("::")[1])

def pytest_runtest_setup(item):
    if item.cls.__name__ in failed:
        pytest.skip("caught already")
"""


def run(
    folder: Path,
    subjects: Iterable[Subject],
    tests: Iterable[tuple[str, str]] | None = None,
    *,
    processes: int = 0,
) -> Outcomes:
    """Run tests of subjects.

    Args:
        folder: An empty folder.
        subjects: The components.
        tests: Names of subjects and of the tests to run of each. None runs the whole suite of each
            up to the first failure.
        processes: Number of processes; 0 runs everything in one, whose expensive imports are made
            once.
    """
    module, report = folder / "test_all.py", folder / "report.xml"
    head = f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport pytest, agl_testing.database\n"
    module.write_text(head + "".join(subject.source for subject in subjects))
    ids = [str(module)]
    if tests is None:
        (folder / "conftest.py").write_text(STOP_AT_THE_FIRST_FAILURE)
    else:
        ids = [f"{module}::Test_{name}::{test}" for name, test in tests]
    # Strict mode: the suites must not depend on a project's configuration of pytest-asyncio.
    options = ["-p", "no:cacheprovider", "-o", "asyncio_mode=strict", f"--junitxml={report}"]
    options += ["-o", "timeout_method=signal", "--timeout=60", f"--rootdir={folder}", "-q"]
    if processes:
        options += ["-n", str(processes), "--dist", "loadscope"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *ids],
        cwd=folder,
        env=unmeasured(),  # which would take minutes, of lines that other tests run
        capture_output=True,
        text=True,
        check=False,
    )
    found: Outcomes = {}
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    for case in cases:
        name = case.get("classname", "").rpartition(".")[2].removeprefix("Test_")
        said = next(iter(case), None)
        outcome = "passed" if said is None or said.tag.startswith("system") else said.tag
        text = "" if said is None else f"{said.get('message')}\n{said.text}"
        test = case.get("name", "").partition("[")[0]
        found.setdefault((name, test), []).append((outcome, text))
    assert found, done.stdout + done.stderr  # one id that does not exist, and nothing is run
    return found
