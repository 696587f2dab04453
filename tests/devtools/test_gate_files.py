"""The files that a gate reads and writes."""

from __future__ import annotations

import subprocess
from datetime import date
from pathlib import Path

import pytest

from devtools.gate import changes, recording, runs, test_map
from devtools.gate.runs import Missed, Record, Run
from devtools.gate.test_map import TestMap, Used
from devtools.process import ROOT

DAY = date(2026, 11, 26)


def test_a_record_is_read_as_it_was_written(tmp_path: Path):
    kept = Record(
        gate=Run("abc", DAY, 900),
        full=Run("def", date(2026, 11, 1), 4000),
        jobs={"package agl_algo_grpo": Run("abc", DAY, 300), "lint": Run("abc", DAY, 40)},
        missed=(Missed('tests/a.py::test_a["x"]', "a rule"),),
    )
    runs.write(kept, tmp_path / "run.toml")
    assert runs.read(tmp_path / "run.toml") == kept
    assert runs.read(tmp_path / "none.toml") == Record()


def test_a_gate_replaces_the_jobs_that_it_ran():
    before = Record(jobs={"docs": Run("a", date(2026, 1, 1), 9), "lint": Run("a", DAY, 9)})
    after = before.with_gate("b", DAY, {"lint": 40.0})
    assert after.gate == Run("b", DAY, 40)
    assert after.jobs == {"docs": before.jobs["docs"], "lint": Run("b", DAY, 40)}
    assert after.full is None
    full = after.with_full_run("c", DAY, 50.0, {"docs": 10.0})
    assert full.full == Run("c", DAY, 50)
    assert full.gate == Run("c", DAY, 10)


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


def test_a_recording_is_put_together(monkeypatch: pytest.MonkeyPatch):
    known = ["tests/test_a.py", "agl_core/ids.py", "plugins/agl_x/src/agl_x/y.py", "docs/p.md"]
    monkeypatch.setattr(recording, "tracked", lambda: known)
    site = f"{ROOT}/.envs/light/lib/python3.11/site-packages"
    found = recording.merged(
        {"tests/test_a.py": [f"{site}/agl_core/ids.py", f"{site}/agl_x/y.py", "/usr/lib/os.py"]},
        [
            {"seconds": {}, "read": {"tests/test_a.py": ["docs/p.md", "docs"]}, "forks": []},
            {"seconds": {"tests/test_a.py": 2.0}, "read": {}, "forks": ["tests/test_a.py"]},
        ],
        [{"seconds": {"tests/test_a.py": 5.0}, "read": {}, "forks": []}],
    )
    files = frozenset({"agl_core/ids.py", "plugins/agl_x/src/agl_x/y.py", "docs/p.md"})
    assert found.tests == {"tests/test_a.py": Used(files, frozenset({"docs"}), True, 2.0, 5.0)}
    assert set(found.digests) == {"tests/test_a.py", *files}
    ids = (ROOT / "agl_core/ids.py").read_text()
    assert found.is_current("agl_core/ids.py", ids)


def test_the_tracked_files_can_be_read():
    kept = runs.read()
    assert kept.gate is not None
    assert kept.full is not None
    assert test_map.read().users_of("agl_core/lifecycle.py")


def test_what_differs_from_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def git(*arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", *author, *arguments]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    monkeypatch.setattr(changes, "ROOT", tmp_path)
    monkeypatch.setattr(changes, "output_of", lambda _, *arguments: git(*arguments))
    for name in ("kept.py", "changed.py", "gone.py", "renamed.py"):
        (tmp_path / name).write_text(f"{name}\n" * 9)
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\na = 1\n")
    git("init", "--initial-branch", "main")
    git("add", ".")
    git("commit", "--message", "first")
    base = git("rev-parse", "HEAD")
    (tmp_path / "changed.py").write_text("new\n")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "renamed.py").rename(tmp_path / "name.py")
    git("add", ".")
    git("commit", "--message", "second")
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\na = 2\n")
    (tmp_path / "untracked.py").write_text("x\n")
    found = changes.since(base)
    moved = {"gone.py", "renamed.py", "name.py", "untracked.py"}
    assert set(found.files) == {"changed.py", "pyproject.toml", *moved}
    assert found.moved == moved
    assert found.tables == {"tool.ruff"}
    assert changes.is_known(base)
    assert not changes.is_known("0" * 40)
    assert "gone.py" not in changes.tracked()
