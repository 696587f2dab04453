"""A pytest plugin that records what each test file uses of the repository, and how long it takes.

:func:`devtools.gate.recording.record` starts pytest with it, under coverage. The context of a
measured line is the test file that ran, in child processes too: they inherit it in a variable, and
their coverage reads it from there. A child counts the lines of imports as well, since it imports
for the test what it uses. Beside the lines it records the files that a test reads and the folders
that it lists, and whether it forks: what runs in a forked child is not measured.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

from devtools.gate.recording import CONTEXT, NOTES


class Recorder:
    """Switches the context of coverage with the test file, and notes what the file does.

    Args:
        root: The root of the repository.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._prefix = f"{root}{os.sep}"
        self._context = ""
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._read: defaultdict[str, set[str]] = defaultdict(set)
        self._forks: set[str] = set()
        self._failed: set[str] = set()
        sys.addaudithook(self._audit)
        os.register_at_fork(before=self._forked)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Note a file that is opened or a folder that is listed; called for every event."""
        if event in ("open", "os.scandir", "os.listdir") and self._context:
            path = arguments[0]
            if isinstance(path, os.PathLike):
                path = os.fspath(path)  # pyright: ignore[reportUnknownVariableType]
            if isinstance(path, str) and path.startswith(self._prefix):
                path = path[len(self._prefix) :]
                # Caches, git's folder and environments are left out, but for what is installed.
                if not path.startswith(".") or "/site-packages/agl_" in path:
                    self._read[self._context].add(path)

    def _forked(self) -> None:
        if self._context:
            self._forks.add(self._context)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, object, object]:
        # Only what a test file itself reads: its imports are executed once for all files.
        if isinstance(collector, pytest.Module):
            self._context = collector.path.relative_to(self._root).as_posix()
        try:
            return (yield)
        finally:
            self._context = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._enter(item.path.relative_to(self._root).as_posix())
        try:
            return (yield)
        finally:
            self._enter("")

    def _enter(self, context: str) -> None:
        self._context = context
        os.environ[CONTEXT] = context
        measured = coverage.Coverage.current()
        if measured is not None:
            measured.switch_context(context)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The controller gets the reports of all workers.
        if "PYTEST_XDIST_WORKER" not in os.environ:
            test = report.nodeid.partition("::")[0]
            self._seconds[test] += report.duration
            if report.failed:
                self._failed.add(test)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._context = ""
        notes = {
            "seconds": self._seconds,
            "read": {test: sorted(paths) for test, paths in self._read.items()},
            "forks": sorted(self._forks),
            "failed": sorted(self._failed),
        }
        Path(os.environ[NOTES], f"{os.getpid()}.json").write_text(json.dumps(notes))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config.rootpath), "agl-recorder")
