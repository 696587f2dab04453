"""``agl eval --attempts`` and ``agl compare``: evaluations by name, paired by task."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import pytest

from agl_algorithm_kit import stored_runs
from agl_cli_kit import main
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.statistics import estimate_gain, estimate_mean, pass_at_k

sqlite = pytest.importorskip("agl_store_sqlite")

PROGRAM = """
import agl_core as agl

@agl.rollout
def agent(task, prompt_template, rollout):
    with agl.operation(name="chat") as call:
        pass
    tried = rollout.metadata["index"] // 4  # of four tasks
    if prompt_template.template == "b" and task == 3:
        raise RuntimeError("no")
    return float(task == 0 or (task == 1 and tried == 0) or prompt_template.template == "b")
"""
FILE = """
agent = "evaluated.py:agent"
val_dataset = [0, 1, 2, 3]
strategy = "shm"
store = { type = "sqlite", path = "runs.db" }
[resources.prompt]
type = "prompt_template"
engine = "f-string"
template = "a"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "evaluated", raising=False)
    (tmp_path / "evaluated.py").write_text(PROGRAM)
    (tmp_path / "train.toml").write_text(FILE)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def evaluate(capsys, *options: str) -> dict:
    assert main(["eval", "train.toml", "--json", *options]) == 0
    return said(capsys)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_agrees_with_brute_force(n: int):
    for passed, k in itertools.product(range(n + 1), range(1, n + 1)):
        attempts = [True] * passed + [False] * (n - passed)
        chosen = list(itertools.combinations(attempts, k))
        assert pass_at_k(passed, n, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
    with pytest.raises(InvalidArgumentError):
        pass_at_k(0, n, n + 1)


@pytest.mark.usefixtures("folder")
def test_attempts_give_avg_and_pass_at_k_with_the_task_as_the_unit(capsys):
    metrics = evaluate(capsys, "--attempts", "3")["metrics"]
    assert (metrics["tasks"], metrics["rollouts"], metrics["attempts"]) == (4, 12, 3)
    average = estimate_mean([1, 1 / 3, 0, 0])
    assert (metrics["mean"], metrics["low"], metrics["high"]) == pytest.approx(average[:3])
    assert set(metrics["pass_at"]) == {"1", "2", "3"}
    assert metrics["pass_at"]["2"] == pytest.approx(estimate_mean([1, 2 / 3, 0, 0])._asdict())
    assert metrics["pass_at"]["3"]["mean"] == 0.5
    assert main(["eval", "train.toml", "--attempts", "2", "--pass-at", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "avg@2" in out
    assert "pass@2" in out


@pytest.mark.usefixtures("folder")
def test_two_evaluations_are_compared_task_by_task(capsys):
    first = evaluate(capsys)["run"]["name"]
    better = ["--set", 'resources.prompt.template="b"']
    second = evaluate(capsys, *better)["run"]["name"]
    assert (first, second) == ("train-eval", "train-eval-2")
    assert main(["compare", "train.toml", first, second, "--json"]) == 0
    found = said(capsys)
    assert found["gain"] == pytest.approx(estimate_gain([1, 1, 0, 0], [1, 1, 1, 0])._asdict())
    assert (found["won"], found["lost"], found["tied"]) == (1, 0, 3)
    assert found["won_tasks"] == ["2"]
    assert main(["compare", "train.toml", second, first, "--tasks"]) == 0
    out = capsys.readouterr().out
    assert "not shown" in out
    assert "lost: 2" in out
    assert main(["compare", "train.toml", first, "nothing"]) == 2
    assert "no finished rollouts of a run 'nothing'" in capsys.readouterr().err


def test_a_store_in_a_read_only_folder_is_read(folder, capsys, monkeypatch):
    names = [evaluate(capsys)["run"]["name"] for _ in range(2)]
    locked = folder / "locked"
    locked.mkdir()
    (folder / "runs.db").rename(locked / "runs.db")
    real = os.access
    # The tests may run as root, for whom no mode is read-only.
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).resolve() != locked and real(path, mode)
    )
    before = sorted(locked.iterdir())
    moved = ["--set", 'store.path="locked/runs.db"']
    assert main(["compare", "train.toml", *names, *moved]) == 0
    assert "read-only" in capsys.readouterr().err
    assert sorted(locked.iterdir()) == before


def test_json_of_evaluations_in_which_all_failed_is_valid(folder, capsys):
    (folder / "evaluated.py").write_text(
        PROGRAM.replace("tried = rollout", "raise RuntimeError\n    tried = rollout")
    )
    for _ in range(2):
        assert main(["eval", "train.toml"]) == 1
    capsys.readouterr()
    assert main(["compare", "train.toml", "train-eval", "train-eval-2", "--json"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["before"]["mean"] is None
    assert found["gain"]["mean"] == 0


@pytest.mark.parametrize("of_agent", [False, True])
def test_a_crash_counts_what_it_does_in_the_evaluations(folder, capsys, of_agent):
    """From -1 to 1 a crash counts -1 in a score, so three crashes fewer are a gain."""
    declared = "reward_range=(-1, 1)" if of_agent else ""
    (folder / "evaluated.py").write_text(
        f"""
import agl_core as agl

@agl.rollout({declared})
def agent(task, prompt_template):
    if prompt_template.template == "a" and task > 0:
        raise RuntimeError("no")
    return 0.5 if prompt_template.template == "a" else 0.1
"""
    )
    if not of_agent:
        with (folder / "train.toml").open("a") as file:
            file.write("[trainer]\nreward_range = [-1, 1]\n")
    first = evaluate(capsys)
    second = evaluate(capsys, "--set", 'resources.prompt.template="b"')
    assert first["metrics"]["mean"] == pytest.approx((0.5 - 3) / 4)
    names = [one["run"]["name"] for one in (first, second)]
    assert main(["compare", "train.toml", *names, "--json"]) == 0
    found = said(capsys)
    for one, side in ((first, "before"), (second, "after")):
        assert found[side]["mean"] == pytest.approx(one["metrics"]["mean"])
    assert found["gain"]["mean"] == pytest.approx(0.1 - (0.5 - 3) / 4)
    assert main(["compare", "train.toml", *names, "--json", "--range", "0", "1"]) == 0
    assert said(capsys)["gain"]["mean"] == pytest.approx(0.1 - 0.5 / 4)


@pytest.mark.usefixtures("folder")
def test_an_evaluation_changes_no_latest_resources_and_is_a_run_of_its_own(capsys, folder):
    evaluate(capsys, "--run", "mine")
    assert main(["eval", "train.toml", "--run", "mine"]) == 2
    assert "the run 'mine' exists already" in capsys.readouterr().err

    async def look():
        store = sqlite.SqliteLightningStore(folder / "runs.db")
        found = await stored_runs(store), await store.get_latest_resources()
        await store.close()
        return found

    import asyncio

    runs, latest = asyncio.run(look())
    assert runs["mine"].finished
    assert runs["mine"].resources_id is None
    assert latest is None


def test_an_evaluation_ends_when_its_tokens_are_spent(capsys, folder):
    """Each rollout uses 30 tokens; those that the budget cancelled are left out of the score."""
    (folder / "evaluated.py").write_text(
        """
import agl_core as agl

@agl.rollout
def agent(task, prompt_template):
    usage = {"gen_ai.usage.input_tokens": 20, "gen_ai.usage.output_tokens": 10}
    with agl.get_active_tracer().operation_context("chat", attributes=usage):
        pass
    return 1.0
"""
    )
    tasks = f"val_dataset={list(range(200))}"
    found = evaluate(capsys, "--max-tokens", "90", "--set", tasks, "--price", "1", "2")["metrics"]
    assert found["budget_spent"]
    assert 3 <= found["rollouts"] < 200
    assert found["input_tokens"] >= 60
    assert found["cost"] == (found["input_tokens"] + 2 * found["output_tokens"]) / 1e6
    assert found["mean"] == 1.0


@pytest.mark.usefixtures("folder")
def test_a_budget_needs_a_price(capsys):
    assert main(["eval", "train.toml", "--max-cost", "1"]) == 2
    assert "a limit of the cost needs --price" in capsys.readouterr().err


COUNTING = """
import pathlib
import time
import agl_core as agl

@agl.rollout
def agent(task, prompt_template):
    with pathlib.Path("ran.txt").open("a") as file:
        file.write(f"{task} ")
    usage = {"gen_ai.usage.input_tokens": 20, "gen_ai.usage.output_tokens": 10}
    with agl.get_active_tracer().operation_context("chat", attributes=usage):
        time.sleep(0.01)  # as a model does: the budget ends a batch while its rollouts run
    return float(task % 2)
"""


def ran(folder: Path) -> list[int]:
    return [int(task) for task in (folder / "ran.txt").read_text().split()]


def test_a_finished_evaluation_prints_its_score_again_and_runs_nothing(capsys, folder):
    (folder / "evaluated.py").write_text(COUNTING)
    first = evaluate(capsys, "--attempts", "2")
    begun = ran(folder)
    assert main(["eval", "train.toml", "--json", "--resume"]) == 0
    shown = capsys.readouterr()
    assert "train-eval is finished: this is its score, nothing ran" in shown.err
    again = json.loads(shown.out.splitlines()[-1])
    assert again["metrics"] == first["metrics"]
    assert again["resources_id"] == first["resources_id"]
    assert again["run"]["name"] == first["run"]["name"] == "train-eval"
    assert ran(folder) == begun
    assert main(["eval", "train.toml", "--resume"]) == 0
    assert "avg@2" in capsys.readouterr().out


def test_an_evaluation_that_its_budget_ended_is_extended(capsys, folder):
    (folder / "evaluated.py").write_text(COUNTING)
    tasks = ["--set", f"val_dataset={list(range(100))}"]
    begins = evaluate(capsys, *tasks, "--max-tokens", "90")
    first = begins["metrics"]
    assert first["rollouts"] < 100
    begun = len(ran(folder))
    again = evaluate(capsys, *tasks, "--max-tokens", "90", "--resume")["metrics"]
    assert again == first  # the budget is still spent
    assert len(ran(folder)) == begun
    assert main(["compare", "train.toml", "train-eval", "train-eval"]) == 0
    warning = f"{100 - first['rollouts']} of 100 rollouts of train-eval never began"
    assert warning in capsys.readouterr().err
    limit = str(30 * first["rollouts"] + 90)
    more = evaluate(capsys, *tasks, "--max-tokens", limit, "--resume")["metrics"]
    assert first["rollouts"] < more["rollouts"] < 100
    assert more["input_tokens"] == 20 * more["rollouts"]
    edited = ["--set", 'resources.prompt.template="b"']
    ends = evaluate(capsys, *tasks, "--resume", *edited)
    assert ends["resources_id"] == begins["resources_id"]
    done = ends["metrics"]
    assert (done["rollouts"], done["mean"], done["budget_spent"]) == (100, 0.5, False)
    assert set(ran(folder)) == set(range(100))


@pytest.mark.usefixtures("folder")
def test_a_run_that_is_no_evaluation_has_no_score(capsys):
    training = ["--set", "algorithm='baseline'", "--run", "night", "--json"]
    assert main(["train", "train.toml", *training]) == 0
    assert main(["eval", "train.toml", "--run", "night", "--resume"]) == 2
    said = "--resume: the store has no finished rollouts of an evaluation 'night'"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [[], ["--json"]])
@pytest.mark.usefixtures("folder")
def test_the_score_is_printed_although_the_rollouts_cannot_be_recorded(
    capsys, monkeypatch, as_json
):
    async def fails(*_: object) -> list[str]:
        raise ConfigError("the rollouts have no model calls")

    monkeypatch.setattr("agl_train.eval_command.find_replayer", lambda name: None)
    monkeypatch.setattr("agl_train.eval_command._record", fails)
    assert main(["eval", "train.toml", "--record", "suite.jsonl", *as_json]) == 2
    shown = capsys.readouterr()
    assert "the rollouts have no model calls" in shown.err
    if as_json:
        (line,) = shown.out.splitlines()
        assert json.loads(line)["metrics"]["mean"] == 0.5
    else:
        assert "0.500" in shown.out
