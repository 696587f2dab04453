"""The files that a gate reads and writes."""

from __future__ import annotations

import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from devtools.gate import changes, recording, runs, test_map
from devtools.gate.runs import Missed, Record, Run
from devtools.gate.test_map import TestMap, Used
from devtools.process import ROOT

DAY = date(2026, 11, 26)


def test_a_record_is_read_as_it_was_written(tmp_path: Path):
    kept = Record(
        gate=Run("abc", DAY, 900),
        full=Run("def", date(2026, 11, 1), 4000, ("docs", "cover"), ("tests/a.py",)),
        jobs={"package agl_algo_grpo": Run("abc", DAY, 300), "lint": Run("abc", DAY, 40)},
        missed=(Missed('tests/a.py::test_a["x"]', "a rule"),),
    )
    runs.write(kept, tmp_path / "run.toml")
    assert runs.read(tmp_path / "run.toml") == kept
    assert runs.read(tmp_path / "none.toml") == Record()


def test_a_gate_replaces_the_jobs_that_it_ran():
    before = Record(jobs={"docs": Run("a", date(2026, 1, 1), 9), "lint": Run("a", DAY, 9)})
    after = before.with_gate(Run("b", DAY, 900), {"lint": 40.0})
    assert after.gate == Run("b", DAY, 900)
    assert after.jobs == {"docs": before.jobs["docs"], "lint": Run("b", DAY, 40)}
    assert after.full is None


def test_a_full_run_is_a_gate_that_owes_what_failed():
    before = Record(full=Run("a", DAY, 9), owed=frozenset({"docs", "lowest"}))
    after = before.with_full_run(Run("b", DAY, 900), {"docs": 40.0}, ["test", "lowest"])
    assert after.gate == Run("b", DAY, 900)
    assert after.full == Run("b", DAY, 900, ("lowest", "test"))
    assert after.owed == {"lowest", "test"}
    assert after.jobs == {"docs": Run("b", DAY, 40)}
    assert after.with_gate(Run("c", DAY, 9), {"lowest": 1.0, "test": 1.0}).owed == set()


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\n", "[gate]\nseconds = 3\n", '{"files": [\n'])
def test_a_file_that_cannot_be_read_ends_the_program_with_one_line(tmp_path: Path, text: str):
    file = tmp_path / "broken"
    file.write_text(text)
    for read in (runs.read, test_map.read):
        with pytest.raises(SystemExit, match=r"broken: not a .*: restore it with git$"):
            read(file)


def test_a_map_is_read_as_it_was_written(tmp_path: Path):
    tests = TestMap(
        {
            "tests/test_a.py": Used(frozenset("abdxz"), frozenset({"d", "q"}), True, 1.5, 2.0),
            "tests/test_b.py": Used(),
        },
        {"a": "1234", "tests/test_a.py": "5678", "z": ""},
    )
    test_map.write(tests, tmp_path / "map.json")
    assert test_map.read(tmp_path / "map.json") == tests
    assert test_map.read(tmp_path / "none.json") == TestMap()
    assert tests.users_of("a") == {"tests/test_a.py"}
    assert tests.listers_of("q/new.py") == {"tests/test_a.py"}
    assert tests.users_below("x") == {"tests/test_a.py"}
    assert tests.users_below("q") == set()


def test_a_later_recording_replaces_the_tests_that_it_has():
    first = TestMap(
        {"tests/test_a.py": Used(frozenset("xy")), "tests/test_b.py": Used(frozenset("xz"))},
        {"x": "x1", "y": "y1", "z": "z1"},
    )
    later = TestMap({"tests/test_a.py": Used(frozenset("xy"))}, {"x": "x2", "y": "y2"})
    both = first.merged(later)
    assert both.tests == {"tests/test_b.py": first.tests["tests/test_b.py"], **later.tests}
    # The other test used `x` as it was before.
    assert both.digests == {"x": "", "y": "y2", "z": "z1"}
    text = "current"
    assert TestMap({}, {"x": test_map.digest(text)}).is_current("x", text)
    assert not TestMap({}, {"x": test_map.digest(text)}).is_current("x", text + "!")
    assert not TestMap().is_current("x", text)


def note(**notes: Any) -> recording.Note:
    return recording.Note(**{"seconds": {}, "read": {}, "forks": [], "failed": [], **notes})


def test_a_recording_is_put_together(monkeypatch: pytest.MonkeyPatch):
    data = "plugins/agl_x/src/agl_x/prompts/p.jinja"
    known = ["tests/test_a.py", "agl_core/ids.py", "plugins/agl_x/src/agl_x/y.py", "docs/p.md"]
    monkeypatch.setattr(recording, "tracked", lambda: [*known, data, "tests/test_failed.py"])
    installed = ".envs/light/lib/python3.11/site-packages"
    site = f"{ROOT}/{installed}"
    test = "tests/test_a.py"
    found = recording.merged(
        {test: [f"{site}/agl_core/ids.py", f"{site}/agl_x/y.py", "/usr/lib/os.py"]},
        [
            note(read={test: ["docs/p.md", "docs", f"{installed}/agl_x/prompts/p.jinja"]}),
            note(seconds={test: 2.0, "tests/test_failed.py": 1.0}, forks=[test]),
            note(failed=["tests/test_failed.py"]),
        ],
        [note(seconds={test: 5.0})],
    )
    files = frozenset({"agl_core/ids.py", "plugins/agl_x/src/agl_x/y.py", "docs/p.md", data})
    assert found.tests == {test: Used(files, frozenset({"docs"}), True, 2.0, 5.0)}
    assert set(found.digests) == {test, *files}
    ids = (ROOT / "agl_core/ids.py").read_text()
    assert found.is_current("agl_core/ids.py", ids)


def test_the_tracked_files_can_be_read():
    kept = runs.read()
    assert kept.gate is not None
    assert kept.full is not None
    assert test_map.read().users_of("plugins/agl_store_kit/src/agl_store_kit/lifecycle.py")


def test_what_differs_from_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def git(*arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", *author, *arguments]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    monkeypatch.setattr(changes, "ROOT", tmp_path)
    for name in ("kept.py", "changed.py", "gone.py", "renamed.py", "bodies é.py"):
        (tmp_path / name).write_text("def f():\n    return 1\n")
    (tmp_path / "worded.py").write_text("WAIT = 3\n")
    (tmp_path / "told.py").write_text('def f():\n    """Say."""\n')
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\na = 1\n")
    for package in ("noted", "required", "heavy"):
        (tmp_path / "plugins" / package).mkdir(parents=True)
        (tmp_path / "plugins" / package / "pyproject.toml").write_text("[project]\na = 1\n")
    git("init", "--initial-branch", "main")
    git("add", ".")
    git("commit", "--message", "first")
    base = git("rev-parse", "HEAD")
    (tmp_path / "changed.py").write_text("new\n")
    (tmp_path / "bodies é.py").write_text("def f():\n    return 2\n")
    (tmp_path / "worded.py").write_text('WAIT = 3  # seconds\n"""A reason."""\n')
    (tmp_path / "told.py").write_text('def f():\n    """Tell."""\n')
    (tmp_path / "gone.py").unlink()
    (tmp_path / "renamed.py").rename(tmp_path / "name.py")
    git("add", ".")
    git("commit", "--message", "second")
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\na = 2\n")
    (tmp_path / "untracked.py").write_text("x\n")
    names = ("noted", "required", "heavy")
    noted, required, heavy = (f"plugins/{name}/pyproject.toml" for name in names)
    (tmp_path / heavy).write_text("[project]\na = 1\n[tool.agl-dev]\nheavy = true\n")
    (tmp_path / noted).write_text("[project]\na = 1\n[tool.agl-dev]\nnote = 'n'\n")
    (tmp_path / required).write_text("[project]\na = 2\n[tool.agl-dev]\nnote = 'n'\n")
    found = changes.since(base)
    moved = {"gone.py", "renamed.py", "name.py", "untracked.py"}
    manifests = {"pyproject.toml", noted, required, heavy}
    assert set(found.files) == {"changed.py", "bodies é.py", "told.py", *manifests, *moved}
    assert found.worded == {"worded.py"}
    assert found.descriptive == {noted}
    assert found.reshaped == {"changed.py", *moved}
    assert found.moved == moved
    assert found.tables == {"tool.ruff"}
    assert changes.is_known(base)
    assert not changes.is_known("0" * 40)
    assert "gone.py" not in changes.tracked()
    assert "bodies é.py" in changes.tracked()
