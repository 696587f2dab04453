"""Options, settings and fixtures of all tests of this repository."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from agl_cli_kit import setup_logging
from devtools import packages

# How long an example takes says something about the machine, which is shared and noisy.
settings.register_profile("agl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--timing",
        choices=["all", "skip", "only"],
        default="all",
        help="which tests to run by their `timing` mark; dev.py runs those after the others",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection, and leave what was collected out of it later.

    It looks again and again at a million objects that live until the end: 40 % of the time of a
    collection, and 0.4 s of some test each time that all generations are due.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


LEFT_OUT = {package.tests for package in packages.all_plugins() if not package.tested_by_default}
"""The tests of packages that are not part of the default suite."""


SLOW_SECONDS = 600
"""Limit of a test marked ``slow`` without one of its own: four of them may share two slow cores."""


LONG_SECONDS = 900
"""A test with such a limit takes minutes, and begins before all others."""


def is_named(folder: Path, config: pytest.Config) -> bool:
    """Whether an argument of pytest is a folder or is in it."""
    named = (config.invocation_params.dir / str(arg).partition("::")[0] for arg in config.args)
    return any(path.is_relative_to(folder) for path in named)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out packages outside the default suite that no argument names, as ``dev.py test`` does.

    Where only timing tests are asked for, import no file without one.
    """
    if collection_path in LEFT_OUT and not is_named(collection_path, config):
        return True
    if config.getoption("--timing") == "only" and collection_path.suffix == ".py":
        return True if "mark.timing" not in collection_path.read_text() else None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    which = config.getoption("--timing")
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
    in_gate = os.environ.get("AGL_TESTS_OF_A_GATE")  # set by devtools/gate/steps.py

    def is_chosen(item: pytest.Item) -> bool:
        if in_gate and item.get_closest_marker("full"):
            return False
        return which == "all" or (which == "only") is bool(item.get_closest_marker("timing"))

    left_out = [item for item in items if not is_chosen(item)]
    if left_out:
        items[:] = [item for item in items if is_chosen(item)]
        config.hook.pytest_deselected(items=left_out)
    # Of several processes none should begin a test of minutes while the others have nothing left.
    items.sort(key=lambda item: -limit_of(item) if limit_of(item) >= LONG_SECONDS else 0)


def limit_of(item: pytest.Item) -> float:
    """Return the time limit that a test declares, in seconds; 0 for none."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker and marker.args else 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in reports: pytest-xdist cannot send them and would end the run."""
    report = yield
    report.sections = [(name, _encodable(text)) for name, text in report.sections]
    text = report.longreprtext
    if text != _encodable(text):
        report.longrepr = _encodable(text)
    return report


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def free_coverages_lock() -> None:
    """Give a forked process a lock of its own: another thread may have held coverage's."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage else None
    if current is not None and current._collector is not None:
        current._collector.data_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=free_coverages_lock)


# -- the command line ------------------------------------------------------------------------------

AGENT = """
import agl_core as agl

@agl.rollout
def solve(task, prompt_template):
    return float(prompt_template.format(q=task["q"]) == task["a"])

def undecorated(task, llm):
    return 1.0

class Solver(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        return 0.5

class NoSolver(agl.LitAgent):
    def rollout(self, task):
        return 0.5

class Quiet(agl.Hook):
    pass

def takes_nothing_an_agent_gets(x):
    return 1.0

def tasks():
    return [{"q": "a", "a": "a!"}] * 3

number = 3
"""
TRAIN = """
agent = "agl_cli_agent.py:solve"
train_dataset = [{q = "x", a = "x!"}, {q = "y", a = "x!"}]
val_dataset = "val.jsonl"
algorithm = "baseline"
strategy = "shm"

[trainer]
n_runners = 2

[resources.prompt]
type = "prompt_template"
engine = "f-string"
template = "{q}!"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a train file, its agent and its dataset; the working directory."""
    (tmp_path / "agl_cli_agent.py").write_text(AGENT)
    (tmp_path / "train.toml").write_text(TRAIN)
    rows = [{"q": "a", "a": "a!"}, {"q": "b", "a": "b!"}, {"q": "c", "a": "?"}]
    (tmp_path / "val.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """Put the logging set-up back that a command run in this process replaces.

    Its handlers would write to the closed stream of a test that has ended.
    """
    core = logging.getLogger("agl_core")
    before = (core.handlers[:], core.level, core.propagate)
    yield
    if (core.handlers, core.level, core.propagate) == before:
        return
    setup_logging(console=False)  # removes the command's handlers and no others
    for name in [name for name in sys.modules if name.startswith("agl_") and "." not in name]:
        logging.getLogger(name).setLevel(logging.NOTSET)
        logging.getLogger(name).propagate = True


@pytest.fixture
def agl(tmp_path: Path):
    """Run ``agl`` in a process of its own."""

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "agl_cli_kit", *arguments],
            cwd=tmp_path,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run
