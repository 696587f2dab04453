"""What `dev.py ci` runs, prints and records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from devtools import debian, process, prometheus, rescued
from devtools.gate import changes, command, plan, recording, runs, steps
from devtools.gate.changes import Changes
from devtools.gate.job import Job
from devtools.gate.plan import Plan
from devtools.gate.runs import Record, Run
from devtools.process import attempt
from tests import conftest

BEFORE = Record(gate=Run("base", command.date(2026, 1, 1), 10.0))
REQUIRED = (Job("lint", seconds=5.0), Job("alone", ("agl_x",), label="of the change"))
ROTATION = (Job("slow", ("tests/a.py",), label="agl_x", covers=("slow agl_x",)),)
OWED = (Job("package", ("agl_y",), covers=("package agl_y",)), Job("docs", ("docs/a.md",)))

Main = Callable[..., Record]


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Main:
    """Run the command with a plan of three jobs; return the record that it leaves."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(runs, "FILE", tmp_path / "run.toml")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(runs.read, "__defaults__", (tmp_path / "run.toml",))
    monkeypatch.setattr(runs.write, "__defaults__", (tmp_path / "run.toml",))
    monkeypatch.setattr(changes, "tracked", list[str])
    monkeypatch.setattr(changes, "is_known", lambda commit: commit in ("base", "other"))
    monkeypatch.setattr(changes, "since", lambda commit: Changes(commit, ("a.py",)))
    made = Plan(REQUIRED, ROTATION, (), OWED, {}, ("agl_x",), 1)
    monkeypatch.setattr(plan, "gate", lambda *_: made)
    monkeypatch.setattr(plan, "everything", lambda *_: (*REQUIRED, *ROTATION))
    monkeypatch.setattr(debian, "install", lambda: None)
    monkeypatch.setattr(prometheus, "install", lambda: None)
    monkeypatch.setattr(prometheus, "missing", list[str])

    def of(
        *arguments: str,
        failed: Sequence[str] = (),
        status: str = "",
        status_after: str = "",
        missing: Sequence[str] = (),
        run: object = None,
        before: Record = BEFORE,
    ) -> Record:
        def ran(groups: Sequence[Sequence[Job]], _: object) -> tuple[dict[str, float], list[str]]:
            return {job.name: 7.0 for group in groups for job in group}, list(failed)

        statuses = iter((status, status_after))

        def git(*words: str) -> str:
            return next(statuses) if words[0] == "status" else "head\n"

        monkeypatch.setattr(debian, "missing", lambda: missing)
        monkeypatch.setattr(steps, "run", run or ran)
        monkeypatch.setattr(changes, "git", git)
        runs.write(before)
        command.main(arguments, {})
        return runs.read()

    return of


def test_a_gate_that_passes_is_recorded_with_its_jobs(main: Main, capsys: pytest.CaptureFixture):
    after = main()
    assert after.gate is not None
    assert after.gate.commit == "head"
    assert set(after.jobs) == {"lint", "alone of the change", "slow agl_x"}
    assert after.full is None
    assert after.owed == {"package agl_y", "docs"}
    assert "jobs: 3 passed, 0 failed\n" in capsys.readouterr().out


def test_a_full_run_is_recorded_as_one(main: Main):
    after = main("--all")
    assert after.full == after.gate != BEFORE.gate


def test_a_full_run_is_recorded_with_what_failed(main: Main):
    with pytest.raises(SystemExit, match=r"^failed: lint, slow agl_x$"):
        main("--all", failed=["lint", "slow agl_x"])
    after = runs.read()
    assert after.full is not None
    assert after.full.failed == ("lint", "slow agl_x")
    assert after.gate == Run("head", after.full.on, after.full.seconds)
    assert after.owed == {"lint", "slow agl_x"}
    assert set(after.jobs) == {"alone of the change"}


LEFT = BEFORE.with_full_run(
    Run("other", command.date(2026, 1, 1), 10.0), {"lint": 5.0}, ["alone", "slow agl_x"]
)


def test_of_what_failed_with_coverage_only_the_test_files_are_owed(
    main: Main, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    cover = Job("cover", covers=("cover", "test", "slow agl_x"))
    monkeypatch.setattr(plan, "everything", lambda *_: (*REQUIRED, cover))
    monkeypatch.setattr(recording, "failed_tests", lambda: ["tests/a.py"])
    indebted = replace(BEFORE, owed=frozenset({"slow agl_x"}))
    with pytest.raises(SystemExit, match=r"^failed: lint, cover$"):
        main("--all", before=indebted, failed=["lint", "cover"])
    after = runs.read()
    assert after.full is not None
    assert after.full.failed == ("lint", "wheels")
    assert after.full.tests == ("tests/a.py",)
    assert after.owed == {"lint", "wheels"}, "also if an earlier gate owed the slow tests"
    assert "no gate has chosen tests/a.py: write it under [[missed]]" in capsys.readouterr().out
    monkeypatch.setattr(command, "choose", lambda _: {"tests/a.py": "changed"})
    with pytest.raises(SystemExit, match=r"^failed: lint, cover$"):
        main("--all", failed=["lint", "cover"])
    assert "no gate has chosen" not in capsys.readouterr().out

    monkeypatch.setattr(recording, "failed_tests", list[str])
    with pytest.raises(SystemExit, match=r"^failed: cover$"):
        main("--all", failed=["cover"])
    assert runs.read().owed == {"cover", "slow agl_x", "test"}


def test_a_suite_that_ran_within_another_keeps_the_commit_of_its_own_seconds(
    main: Main, monkeypatch: pytest.MonkeyPatch
):
    cover = Job("cover", covers=("cover", "test"))
    monkeypatch.setattr(plan, "everything", lambda *_: (cover,))
    known = BEFORE.with_gate(Run("old", command.date(2026, 1, 1), 9.0), {"test": 440.0})
    ran = main("--all", before=known).jobs
    assert (ran["cover"].seconds, ran["cover"].measured) == (7.0, "")
    assert (ran["test"].commit, ran["test"].seconds, ran["test"].measured) == ("head", 440.0, "old")


def test_the_rest_of_a_full_run_ends_it(main: Main, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(changes, "since", lambda commit: Changes(commit, (runs.NAME,)))
    monkeypatch.setattr(plan, "rest", lambda *_: (REQUIRED[1], *ROTATION))
    after = main("--rest", before=LEFT)
    assert set(after.jobs) == {"lint", "alone of the change", "slow agl_x"}
    assert after.jobs["lint"] == LEFT.jobs["lint"], "it passed before"
    assert after.full is not None
    assert after.full.failed == ()
    assert after.full.seconds >= 10, "with the time of the first part"
    with pytest.raises(SystemExit, match=r"^failed: slow agl_x$"):
        main("--rest", before=LEFT, failed=["slow agl_x"])
    full = runs.read().full
    assert full is not None
    assert full.failed == ("slow agl_x",)


def test_tests_that_fail_again_in_the_rest_stay_owed(main: Main, monkeypatch: pytest.MonkeyPatch):
    run = Run("other", command.date(2026, 1, 1), 10.0, tests=("tests/a.py",))
    before = BEFORE.with_full_run(run, {}, ["cover"], ["cover"])
    monkeypatch.setattr(changes, "since", lambda commit: Changes(commit, (runs.NAME,)))
    monkeypatch.setattr(
        plan, "rest", lambda *_: (Job("wheels", ("tests/a.py",), covers=("wheels",)),)
    )
    with pytest.raises(SystemExit, match=r"^failed: wheels$"):
        main("--rest", before=before, failed=["wheels"])
    after = runs.read()
    assert after.full is not None
    assert after.full.tests == ("tests/a.py",)
    assert after.owed == {"wheels"}


def test_the_rest_is_run_if_gates_have_tested_what_changed(
    main: Main, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plan, "rest", lambda *_: ROTATION)
    since: list[str] = []

    def changed(commit: str) -> Changes:
        since.append(commit)
        return Changes(commit, (runs.NAME,))

    monkeypatch.setattr(changes, "since", changed)
    gated = LEFT.with_gate(Run("base", command.date(2026, 1, 2), 10.0), {"alone": 1.0})
    after = main("--rest", before=gated)
    assert since == ["base"], "changes before the last gate were tested by it"
    assert after.full is not None
    assert after.full.failed == ()


def test_changes_that_no_gate_has_tested_are_refused(main: Main, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SystemExit, match="nothing is left of the last full run"):
        main("--rest")
    with pytest.raises(SystemExit, match="the tree differs from other, the last gate's: run a"):
        main("--rest", before=LEFT)
    monkeypatch.setattr(changes, "is_known", lambda _: False)
    with pytest.raises(SystemExit, match="the tree differs from other, the last gate's: run a"):
        main("--rest", before=LEFT)


@pytest.mark.parametrize(
    ("arguments", "status", "ci"),
    [
        (("--since", "other"), "", ""),
        ((), " M dev.py\n", ""),
        ((), "", "true"),
        (("--plan",), "", ""),
    ],
)
def test_what_says_nothing_of_this_commit_is_not_recorded(
    main: Main, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], status: str, ci: str
):
    monkeypatch.setenv("CI", ci)
    assert main(*arguments, status=status) == BEFORE


def test_a_failed_job_fails_the_command(main: Main, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit, match=r"^failed: lint$"):
        main(failed=["lint"])
    assert runs.read() == BEFORE
    assert "jobs: 2 passed, 1 failed\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"missing": ["chromium"]}, "not recorded: without chromium, tests were left out"),
        ({"status_after": " M dev.py\n"}, "not recorded: the tree differs from head, on which"),
    ],
)
@pytest.mark.parametrize("arguments", [(), ("--all",)])
def test_a_run_that_says_little_about_its_commit_is_not_recorded(
    main: Main,
    capsys: pytest.CaptureFixture,
    arguments: Sequence[str],
    how: dict[str, Any],
    said: str,
):
    assert main(*arguments, **how) == BEFORE
    assert said in capsys.readouterr().out


def test_a_full_run_may_write_the_record_of_its_tests(main: Main):
    assert main("--all", status_after=" M .ci/test_map.json\n").full is not None


def test_a_gate_leaves_out_the_tests_of_a_full_run(capfd: pytest.CaptureFixture):
    def step(_: Sequence[str]) -> None:
        process.run(sys.executable, "-c", f"import os; print(repr(os.environ[{steps.SHORT!r}]))")

    steps.run([(Job("short"), Job("long", whole=True))], {"short": step, "long": step})
    assert [line for line in capfd.readouterr().out.splitlines() if line[0] == "'"] == [
        "'yes'",
        "''",
    ]


@pytest.mark.parametrize(("variable", "kept"), [("", ["full", ""]), ("yes", [""])])
def test_the_mark_of_a_full_run(monkeypatch: pytest.MonkeyPatch, variable: str, kept: list[str]):
    class Item(NamedTuple):
        mark: str

        def get_closest_marker(self, name: str) -> bool:
            return name == self.mark

    deselected: list[Item] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    config: Any = SimpleNamespace(getoption=lambda name: "all", hook=hook)
    items: Any = [Item("full"), Item("")]
    monkeypatch.setenv(steps.SHORT, variable)
    conftest.pytest_collection_modifyitems(config, items)
    assert [item.mark for item in items] == kept
    assert len(deselected) == 2 - len(kept)


def test_tests_that_a_second_try_rescued_are_named_at_the_end(
    main: Main, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr(rescued, "noted", lambda: nullcontext(["tests/a.py::test_b"]))
    main("--since", "other")
    lines = capsys.readouterr().out.splitlines()
    closing = lines.index("jobs: 3 passed, 0 failed")
    assert lines[closing + 1] == "passed at the second try: tests/a.py::test_b"


def test_a_gate_that_passed_elsewhere_is_recorded_with_the_known_durations(main: Main):
    after = main("--passed")
    assert after.gate is not None
    assert after.gate.commit == "head"
    assert {name: run.seconds for name, run in after.jobs.items()} == {"lint": 5.0}
    known = BEFORE.with_gate(Run("old", command.date(2026, 1, 1), 9.0), {"lint": 6.0})
    lint = main("--passed", before=known).jobs["lint"]
    assert (lint.commit, lint.measured) == ("head", "old")
    again = main("--passed", before=runs.read())
    assert again.jobs["lint"].measured == "old", "not where its seconds were only kept"
    with pytest.raises(SystemExit, match="differs from its commit"):
        main("--passed", status="?? new.py\n")


def test_a_commit_that_is_not_here_is_refused_or_runs_everything(
    main: Main, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    with pytest.raises(SystemExit, match="nonsense is not a commit"):
        main("--since", "nonsense")
    monkeypatch.setattr(changes, "is_known", lambda _: False)
    assert main().full is not None
    assert "is not in this clone: running everything" in capsys.readouterr().out


def test_an_interrupted_full_run_is_recorded_with_what_is_left(
    main: Main, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def interrupt(_: Sequence[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "STEPS", {**steps.STEPS, "lint": lambda _: None, "alone": interrupt})
    with pytest.raises(SystemExit, match=r"^interrupted: left: alone of the change, slow agl_x$"):
        main("--all", run=steps.run)
    after = runs.read()
    assert after.full is not None
    assert after.full.failed == ("alone", "slow agl_x")
    assert set(after.jobs) == {"lint"}
    assert "jobs: 1 passed, 2 failed\n" in capsys.readouterr().out


def test_a_job_that_raises_is_a_failed_job(capfd: pytest.CaptureFixture[str]):
    def broken() -> None:
        raise FileNotFoundError("npm")

    done: list[str] = []
    durations, failed = attempt({"broken": broken, "next": lambda: done.append("next")})
    assert failed == ["broken"]
    assert set(durations) == {"broken", "next"}
    assert done == ["next"]
    assert "FileNotFoundError: npm" in capfd.readouterr().out
