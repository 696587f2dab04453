"""The proof of the gate's choice: it runs, and what counts as chosen is what a gate runs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devtools import suites
from devtools.gate import changes, proof, test_map
from devtools.gate.parts import Tree
from devtools.process import ROOT

RUN_AS_PROGRAM = re.compile(r'"-m", "(devtools[\w.]*)"')


def test_what_dev_py_runs_as_a_program_is_one():
    sources = [ROOT / "dev.py", *ROOT.glob("devtools/**/*.py")]
    modules = {name for file in sources for name in RUN_AS_PROGRAM.findall(file.read_text())}
    assert "devtools.gate.proof" in modules
    for name in modules:
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None
        assert 'if __name__ == "__main__":' in Path(spec.origin).read_text(), name


def test_its_options_are_printed():
    command = [sys.executable, "-m", "devtools.gate.proof", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: dev.py proof [-h] [--sample SAMPLE]")


OWN, OTHER = "the changed part", "another part"
FILES = {"own.py": OWN, "own_slow.py": OWN, "other.py": OTHER, "other_slow.py": OTHER}


@pytest.mark.parametrize(
    ("file", "mark", "counts"),
    [
        ("own.py", suites.UNMARKED, True),
        ("own_slow.py", suites.SLOW, True),
        ("other.py", suites.UNMARKED, False),
        ("other_slow.py", suites.SLOW, False),
    ],
)
def test_what_a_gate_runs_counts(tmp_path: Path, file: str, mark: str, counts: bool):
    """Of four test files that execute the changed line one kills; a gate chooses own.py."""
    changed = tmp_path / "module.py"
    changed.write_text("x = 1\n")

    def killer(files: AbstractSet[str], marks: str) -> str | None:
        assert changed.read_text() == "x = 2\n"
        return f"{file}::test" if file in files and marks == mark else None

    copy: Any = SimpleNamespace(
        root=tmp_path,
        tests=SimpleNamespace(users_of=lambda changed: set(FILES)),
        tree=SimpleNamespace(test_files=FILES, is_slow=lambda test: test.endswith("_slow.py")),
        chosen=lambda mutant: {"own.py"},
        killer=killer,
        slow_killer=lambda files, mutant: killer(files, suites.SLOW),
    )
    mutant: Any = SimpleNamespace(
        file="module.py", source="x = 2\n", at_import=False, line=1, end=1
    )
    executed = {"module.py": {1: set(FILES)}}
    by_chosen, by_others = proof._killers(copy, OWN, mutant, executed)  # type: ignore[arg-type]
    assert (by_chosen if counts else by_others) == f"{file}::test"
    assert (by_others if counts else by_chosen) is None
    assert changed.read_text() == "x = 1\n"


def test_tests_of_a_heavy_part_run_in_its_environment():
    tree = Tree(ROOT, changes.tracked())
    heavy = next(file for file, part in tree.test_files.items() if part.heavy)
    light = [file for file, part in tree.test_files.items() if not part.heavy][:2]
    copy = proof.Copy(ROOT, tree, test_map.read(), set())
    found = {part and part.name: tests for part, tests in copy._by_environment([*light, heavy])}
    assert found == {tree.test_files[heavy].name: [heavy], None: light}


TESTS = """
import pytest

@pytest.mark.parametrize("said", ["one - two words", "one"])
def test_ids_may_have_spaces(said):
    assert said == "one"

@pytest.mark.xdist_group("pair")
def test_that_shares_a_process():
    assert False
"""


def test_tests_that_fail_without_a_fault_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(suites, "dev_python", lambda: Path(sys.executable))
    monkeypatch.setattr(suites, "WORKERS", 1)
    (tmp_path / "test_broken.py").write_text(TESTS)
    part: Any = SimpleNamespace(heavy=False, package=None)
    tree: Any = SimpleNamespace(test_files={"test_broken.py": part}, parts={})
    copy = proof.Copy(tmp_path, tree, test_map.read(), set())
    assert copy.killer(["test_broken.py"], suites.UNMARKED) is not None
    copy.find_broken(["test_broken.py"], [])
    assert copy.broken == {
        "test_broken.py::test_ids_may_have_spaces[one - two words]",
        "test_broken.py::test_that_shares_a_process",
    }
    assert copy.killer(["test_broken.py"], suites.UNMARKED) is None
