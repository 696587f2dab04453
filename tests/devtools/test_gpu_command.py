"""``python3 dev.py gpu``: which Python runs which tests, with which variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from devtools import packages, suites

Calls = list[tuple[tuple[str | Path, ...], dict[str, str]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The commands that would run, and the variables that each gets."""
    made: Calls = []

    def run(*command: str | Path, env: dict[str, str]) -> None:
        made.append((command, env))

    monkeypatch.setattr(suites, "run", run)
    monkeypatch.setattr(suites.distributions, "alone", _environment_of)
    return made


def _environment_of(package: packages.Package, *, fresh: bool) -> Path:
    assert not fresh
    return Path("envs", package.label)


def test_it_runs_the_marked_tests_in_the_environment_of_their_package(calls: Calls):
    suites.gpu(["-k", "precision", "-x"])
    ((command, env),) = calls
    assert command[0] == Path("envs/agl_algo_grpo")
    assert command[command.index("-m", 3) + 1] == "gpu"
    assert command[-4:] == (
        packages.ROOT / "tests/plugins/agl_algo_grpo/gpu",
        "-k",
        "precision",
        "-x",
    )
    assert "--session-timeout=240" in command
    assert suites.GPU_ON_CPU not in env


def test_a_python_that_has_the_packages_takes_the_place_of_the_environment(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", "/where/pip/installed")
    suites.gpu(["--python", sys.executable, "--cpu"])
    ((command, env),) = calls
    assert command[0] == Path(sys.executable)
    assert env["PYTHONPATH"].split(os.pathsep)[-1] == "/where/pip/installed"
    assert env[suites.GPU_ON_CPU] == "cpu"


def test_a_python_that_is_missing_is_refused(calls: Calls, capsys: Any):
    with pytest.raises(SystemExit) as ended:
        suites.gpu(["--python", "no/such/python"])
    assert ended.value.code == 2
    assert "no/such/python is not a program" in capsys.readouterr().err
    assert not calls


def test_the_variable_is_the_one_that_the_tests_read():
    text = (packages.ROOT / "tests/plugins/agl_algo_grpo/gpu/conftest.py").read_text()
    assert f'ON_CPU = "{suites.GPU_ON_CPU}"' in text


def test_the_marked_tests_are_where_the_command_looks():
    # The mark in a string: this file has no such tests.
    mark = "mark." + "gpu"
    marked = {
        path.relative_to(packages.ROOT).parent.as_posix()
        for path in packages.ROOT.glob("tests/**/test_*.py")
        if mark in path.read_text()
    }
    assert marked == {"tests/plugins/agl_algo_grpo/gpu"}
