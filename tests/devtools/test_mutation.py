"""The mutation runner: its operators, its list of survivors, and verdicts on a small module."""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path

import pytest

from devtools.mutants import mutants_of
from devtools.mutation import COMPONENTS, HARMLESS, SURVIVORS, Listed, in_fork
from devtools.process import ROOT

MODULE = '''
"""A docstring."""
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT: int = 3


def first(items: "Sequence[int]", default: bool = True) -> int | None:
    """Another docstring."""
    logging.info("starts with %s", items)
    if not items:
        raise ValueError("no items")
    if default and len(items) > LIMIT:
        items.sort()
    return items[0] + 1
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "module.py").write_text(MODULE)
    return tmp_path


def test_each_operator_makes_its_mutants(module: Path):
    assert [
        mutant.key.removeprefix("module.py::") for mutant in mutants_of(module, "module.py")
    ] == [
        ": 3 -> 4",
        "first: True -> False",
        "first: not items -> items",
        "first: raise ValueError('no items') -> pass",
        "first: default and len(items) > LIMIT -> default or len(items) > LIMIT",
        "first: len(items) > LIMIT -> len(items) >= LIMIT",
        "first: items.sort() -> pass",
        "first: return items[0] + 1 -> return None",
        "first: items[0] + 1 -> items[0] - 1",
        "first: 0 -> 1",
        "first: 1 -> 2",
    ]


def test_a_mutant_is_the_module_with_one_fault(module: Path):
    mutants = {mutant.change: mutant for mutant in mutants_of(module, "module.py")}
    sources = {mutant.source for mutant in mutants.values()}
    assert len(sources) == len(mutants)
    space: dict[str, object] = {}
    exec(mutants["items[0] + 1 -> items[0] - 1"].source, space)
    first = space["first"]
    assert callable(first)
    assert first([5]) == 4
    exec(mutants["not items -> items"].source, space)
    with pytest.raises(ValueError, match="no items"):
        space["first"]([5])  # pyright: ignore[reportCallIssue]


def test_a_mutant_says_when_its_line_runs(module: Path):
    at = {
        mutant.change: (mutant.line, mutant.at_import) for mutant in mutants_of(module, "module.py")
    }
    assert at["3 -> 4"] == (9, True)
    assert at["True -> False"] == (12, True)
    assert at["1 -> 2"] == (19, False)


def test_the_list_of_survivors_is_valid():
    listed = tomllib.loads(SURVIVORS.read_text())
    assert set(listed) <= set(COMPONENTS)
    for name, items in listed.items():
        entries = [Listed(**item) for item in items]
        assert len({entry.mutant for entry in entries}) == len(entries), name
        for entry in entries:
            assert entry.kind in {*HARMLESS, "outside", "hole"}
            assert entry.reason
            assert (ROOT / entry.mutant.partition("::")[0]).is_file(), entry.mutant


def test_the_files_of_each_component_exist():
    for component in COMPONENTS.values():
        for pattern in component.files:
            assert list(ROOT.glob(pattern)), pattern
        for suite in component.suites:
            assert (ROOT / suite.partition("::")[0]).is_file()


# Python 3.12 and later warn of a fork in a process with threads, which a worker of pytest is.
forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@forks
def test_a_fork_tells_its_result_and_what_it_printed():
    def work() -> int:
        os.write(1, b"said")
        return 3

    assert in_fork(work, seconds=30) == (3, "said")


@forks
def test_a_fork_that_hangs_is_ended():
    def work() -> int:
        time.sleep(60)
        return 0

    start = time.monotonic()
    assert in_fork(work, seconds=0.2) == (None, "")
    assert time.monotonic() - start < 10
