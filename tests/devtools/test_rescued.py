"""Tests that a second try rescued are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools import rescued, suites
from devtools.process import ROOT

TEST = """
import pathlib
import pytest

FIRST = pathlib.Path(__file__).with_name("was here")

def test_passes(): ...

def test_passes_at_the_second_try():
    first = not FIRST.exists()
    FIRST.touch()
    assert not first

def test_fails_twice():
    assert False

@pytest.fixture
def broken():
    raise OSError

def test_errs_twice(broken): ...
"""


def test_only_those_that_passed_in_the_end_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "test_it.py").write_text(TEST)
    monkeypatch.setenv("CI", "true")
    before = dict(os.environ)
    with rescued.noted() as names:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", *suites.second_try(), "-n", "2"),
                *("-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "1 failed, 2 passed, 1 error, 3 rerun" in done.stdout
        assert names == []
    assert names == ["test_it.py::test_passes_at_the_second_try"]
    assert dict(os.environ) == before


def test_a_run_outside_a_gate_names_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(rescued.VARIABLE, raising=False)
    rescued.pytest_terminal_summary(None)  # pyright: ignore[reportArgumentType]


def test_dev_py_needs_no_pytest():
    code = "import sys; sys.modules['pytest'] = None; import dev"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
