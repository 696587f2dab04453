"""Names the tests that only a second try rescued: each is a fault to mend.

As a pytest plugin (``-p devtools.rescued``) it appends their names to the file that
:data:`VARIABLE` names, so that the end of a gate of many runs of pytest can print all of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # dev.py has no pytest
    import pytest

VARIABLE = "AGL_RESCUED_TESTS"
"""Environment variable: path of the file, one test a line."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the tests of this run that failed and then passed."""
    path = os.environ.get(VARIABLE)
    # A worker of pytest-xdist has a summary, too; its controller's has all tests.
    if not path or hasattr(terminalreporter.config, "workerinput"):
        return
    failed = {r.nodeid for kind in ("failed", "error") for r in terminalreporter.getreports(kind)}
    again = dict.fromkeys(report.nodeid for report in terminalreporter.getreports("rerun"))
    lines = [f"{name}\n" for name in again if name not in failed]
    # Opened for appending: several runs may end at the same time.
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("".join(lines))


@contextmanager
def noted() -> Iterator[list[str]]:
    """Give a list that has the names of the rescued tests at the end of the block.

    It holds for the runs of pytest that start in the block with this plugin.
    """
    names: list[str] = []
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tests")
        file.touch()
        os.environ[VARIABLE] = str(file)
        try:
            yield names
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before
            names += file.read_text(encoding="utf-8").splitlines()
