"""Jobs of a gate, their order, and the suites left for later."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from devtools import packages, suites
from devtools.gate import maker, plan
from devtools.gate.changes import Changes
from devtools.gate.job import Job, debts_of, duration
from devtools.gate.parts import Tree
from devtools.gate.runs import Record, Run
from devtools.gate.selection import Context, Reason
from devtools.gate.test_map import TestMap, Used, digest

FILES = {
    "agl_core/ids.py": "",
    "plugins/agl_base/src/agl_base/base.py": "",
    "plugins/agl_other/src/agl_other/other.py": "",
    "docs/page.md": "",
    "tests/core/test_ids.py": "",
    "tests/plugins/agl_base/test_base.py": "class TestBase(StoreSuite): ...\n",
    "tests/plugins/agl_base/test_crash.py": f"pytestmark = pytest.mark.{'slow'}\n",
    "tests/plugins/agl_user/test_user.py": "class TestUser(StoreSuite): ...\n",
    "tests/plugins/agl_other/test_other.py": "",
    "tests/plugins/agl_other/conftest.py": f'PATH = TESTS / "frameworks"; {suites.VLLM_PYTHON}\n',
    "tests/frameworks/agents.py": "",
    "tests/envs/vllm.txt": "",
}
CORE = frozenset({"agl_core/__init__.py"})
USED = {
    "tests/core/test_ids.py": Used(frozenset({"agl_core/ids.py"}), seconds=8),
    "tests/plugins/agl_base/test_base.py": Used(CORE, seconds=4),
    "tests/plugins/agl_base/test_crash.py": Used(CORE, slow_seconds=40),
    "tests/plugins/agl_user/test_user.py": Used(CORE),
    "tests/plugins/agl_other/test_other.py": Used(frozenset({"agl_core/ids.py"}), seconds=60),
}
OLD, NEW = date(2026, 1, 1), date(2026, 2, 2)

Make = Callable[..., plan.Plan]


@pytest.fixture
def context(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Context]:
    for name, text in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    monkeypatch.setattr(suites, "examples_with_environments", lambda: ["trl"])
    monkeypatch.setattr(packages, "with_requirements", lambda _: [])

    def of(*files: str) -> Context:
        return Context(
            Tree(tree, FILES),
            TestMap(USED, {name: digest(text) for name, text in FILES.items()}),
            Changes("base", files),
        )

    return of


def names(jobs: tuple[Job, ...]) -> list[str]:
    return [job.name for job in jobs]


def test_a_light_package_runs_its_own_tests_and_the_contract_of_the_others(
    context: Callable[..., Context],
):
    made = plan.gate(context("plugins/agl_base/src/agl_base/base.py"), Record(), budget=0)
    jobs = {job.name: job for job in made.required}
    assert list(jobs) == [
        *("types", "lint", "dist", "alone of the change", "contract", "test of the change"),
        "slow agl_base",
    ]
    # The package that requires it in an extra is tried alone, too.
    assert jobs["alone of the change"].arguments == ("agl_base", "agl_user")
    assert jobs["contract"].arguments == ("tests/plugins/agl_user/test_user.py",), (
        "those of the changed package run whole"
    )
    own = ("tests/plugins/agl_base/test_base.py", "tests/plugins/agl_base/test_crash.py")
    assert jobs["test of the change"].arguments == own
    assert jobs["slow agl_base"].arguments == ("tests/plugins/agl_base/test_crash.py",)
    assert made.rotation == ()


def test_the_default_suite_runs_as_it_stands_if_all_of_it_is_chosen(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
):
    why = Reason("a rule", "found")
    chosen = [name for name in FILES if "/test_" in name]
    monkeypatch.setattr(maker, "choose", lambda _: dict.fromkeys(chosen, why))
    made = plan.gate(context("docs/page.md"), Record(), budget=0)
    jobs = {job.name: job for job in made.required if job.step == "test"}
    assert list(jobs) == ["test", "test of the change"]
    assert jobs["test"].arguments == ()
    assert jobs["test"].covers == ("test",)
    # What is not in the default suite; the heavy package has an environment of its own.
    assert set(jobs["test of the change"].arguments) == {
        "tests/plugins/agl_base/test_base.py",
        "tests/plugins/agl_base/test_crash.py",
    }


def test_a_heavy_package_runs_in_its_environment(context: Callable[..., Context]):
    made = plan.gate(context("plugins/agl_other/src/agl_other/other.py"), Record(), budget=0)
    assert names(made.required) == ["types", "lint", "dist", "contract", "package agl_other"]
    assert "package agl_other" not in names(made.later)


@pytest.mark.parametrize("file", ["tests/frameworks/agents.py", "tests/envs/vllm.txt"])
def test_shared_agents_and_requirements_of_vllm_run_the_packages_that_use_them(
    context: Callable[..., Context], file: str
):
    made = plan.gate(context(file), Record(), budget=0)
    assert "package agl_other" in names(made.required)


def test_heavy_packages_that_use_what_changed_come_before_the_deep_suites(
    context: Callable[..., Context],
):
    made = plan.gate(context("agl_core/ids.py"), Record())
    assert made.rotation[0].name == "affected agl_other"
    assert made.rotation[0].arguments == ("tests/plugins/agl_other/test_other.py",)


def test_the_deep_suites_that_ran_longest_ago_come_first_while_they_fit(
    context: Callable[..., Context],
):
    suites_of_all = (
        "cover",
        "test",
        "lifecycle",
        "docs",
        "lowest",
        "alone",
        "example trl",
        "package agl_other",
    )
    ran = {name: Run("c", NEW, 100) for name in suites_of_all}
    ran["docs"] = Run("c", OLD, 5000)
    ran["lowest"] = Run("c", OLD, 60)
    ran |= {name: Run("c", NEW, 30) for name in ("types", "lint", "dist", "contract")}
    ran["test apart"] = Run("c", NEW, 1)
    ran["slow agl_base"] = Run("c", NEW, 1)
    made = plan.gate(context("docs/page.md"), Record(jobs=ran), budget=300)
    # Types and lint share the cores: 30 s together, and 60 s for the other two.
    assert duration(made.required[:4]) == 90
    assert made.rotation[0].name == "lowest", "the docs ran as long ago, but do not fit"
    assert "docs" in names(made.later)
    assert duration((*made.required, *made.rotation)) <= 300


def test_what_was_never_run_comes_first(context: Callable[..., Context]):
    ran = {"alone": Run("c", OLD, 10), "docs": Run("c", OLD, 10)}
    made = plan.gate(context("docs/page.md"), Record(jobs=ran))
    assert {"alone", "docs"}.isdisjoint(names(made.rotation)[:3])


def test_coverage_is_measured_in_a_full_run_only(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
):
    ran = {"cover": Run("c", OLD, 1)}
    monkeypatch.setattr(maker, "RULES", "agl_base")
    made = plan.gate(context("plugins/agl_base/src/agl_base/base.py"), Record(jobs=ran))
    assert "cover" not in names((*made.required, *made.rotation, *made.later))
    assert "lifecycle" in names(made.required)
    assert "cover" in names(plan.everything(context(), Record(jobs=ran)))


def test_everything_is_every_deep_suite_once(context: Callable[..., Context]):
    jobs = plan.everything(context(), Record())
    covered = [name for job in jobs for name in job.covers]
    assert len(covered) == len(set(covered))
    assert set(covered) == {
        *("cover", "wheels", "test", "lifecycle", "docs", "lowest", "alone", "test apart"),
        *("slow agl_base", "package agl_other", "example trl"),
    }


def test_the_rest_of_a_full_run_is_what_no_gate_has_run_since(context: Callable[..., Context]):
    left = ["cover", "docs", "lint", "slow agl_base", "test"]
    interrupted = Record().with_full_run(Run("c", OLD, 9), {}, left)
    assert names(plan.rest(context(), interrupted)) == ["lint", "cover", "docs"]
    ran: dict[str, float] = dict.fromkeys(("lint", "docs", "slow agl_base"), 1.0)
    gated = interrupted.with_gate(Run("d", NEW, 9), ran)
    assert names(plan.rest(context(), gated)) == ["cover"]

    tests = ("tests/core/test_ids.py",)
    run = Run("c", OLD, 9, tests=tests)
    failed = Record().with_full_run(run, {}, ["cover", "docs", "test"], ["cover", "test"])
    last = plan.rest(context(), failed)
    assert [(job.step, job.arguments, job.whole) for job in last] == [
        ("docs", (), True),
        ("wheels", tests, True),
    ]
    paid = failed.with_gate(Run("d", NEW, 9), {"wheels": 1.0})
    assert names(plan.rest(context(), paid)) == ["docs"]


def test_the_lines_name_each_job_with_its_reason(context: Callable[..., Context]):
    made = plan.gate(context("plugins/agl_base/src/agl_base/base.py"), Record(), budget=0)
    text = "\n".join(plan.lines_of(made, "0123456789"))
    assert "changed since 0123456: 1 files; agl_base\n" in text
    assert "test files chosen: 2\n  2 of changed parts\n" in text
    assert "test of the change                  21 s  `dev.py test`: 2 files of changed" in text
    assert "left for later gates: 7 suites" in text


def test_what_takes_longer_than_the_limit_is_owed_and_the_next_gates_require_it(
    context: Callable[..., Context],
):
    change = context("plugins/agl_other/src/agl_other/other.py")
    long = Record(jobs={"package agl_other": Run("c", OLD, 4000)})
    whole = plan.gate(change, long, budget=0, limit=10_000)
    assert "package agl_other" in names(whole.required)
    assert whole.owed == ()

    made = plan.gate(change, long, budget=0, limit=1_000)
    assert "package agl_other" not in names(made.required)
    assert "unmarked agl_other" in names(made.required)
    assert names(made.owed) == ["package agl_other"]
    least = plan.gate(change, long, budget=0, limit=0)
    assert "unmarked agl_other" not in names(least.required)
    assert names(least.owed) == ["package agl_other"]
    assert "owed, since 40 minutes are the limit" in "\n".join(plan.lines_of(made, "0123456"))

    after = long.with_gate(Run("d", NEW, 9), {}, debts_of(made.owed))
    later = plan.gate(context("docs/page.md"), after, budget=0, limit=10_000)
    (debt,) = [job for job in later.required if job.name == "package agl_other"]
    assert debt.why == "owed by an earlier gate"
    paid = after.with_gate(Run("e", NEW, 9), {"package agl_other": 3000})
    assert paid.owed == frozenset()


def test_nothing_is_owed_whose_short_form_takes_as_long(context: Callable[..., Context]):
    change = context("plugins/agl_other/src/agl_other/other.py")
    short = Record(jobs={"package agl_other": Run("c", OLD, 100)})
    assert plan.gate(change, short, budget=0, limit=0).owed == ()


def test_what_failed_in_a_full_run_is_required_once_whatever_it_takes(
    context: Callable[..., Context],
):
    ran = {"cover": Run("c", OLD, 9000), "test": Run("c", OLD, 9000)}
    full = Record(jobs=ran).with_full_run(Run("d", NEW, 9), {}, ["cover", "slow agl_base", "test"])
    made = plan.gate(context("docs/page.md"), full, budget=0)
    debts = [job.name for job in made.required if job.why == "owed by an earlier gate"]
    assert debts == ["cover"], "the default suite and the slow tests run with coverage"
    assert {job.name for job in made.required if job.whole} == {"cover"}, "with their full tests"
    tests = ("tests/core/test_ids.py", "tests/core/test_gone.py")
    failed = Run("d", NEW, 9, tests=tests)
    known = Record(jobs=ran).with_full_run(failed, {}, ["cover", "test"], ["cover", "test"])
    made = plan.gate(context("docs/page.md"), known, budget=0)
    (debt,) = [job for job in made.required if job.why == "owed by an earlier gate"]
    assert (debt.step, debt.arguments, debt.whole) == ("wheels", tests[:1], True)
    paid = known.with_gate(Run("e", NEW, 9), dict.fromkeys(debt.covers, 9.0))
    assert paid.owed == frozenset()
    assert "wheels" not in names(plan.gate(context("docs/page.md"), paid, budget=0).required)
    only = Record().with_full_run(Run("d", NEW, 9), {}, ["slow agl_base"])
    assert "cover" not in names(plan.gate(context(), only).required)
