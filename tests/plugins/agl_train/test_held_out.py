"""The test of a search on tasks that it did not use: paired, and not one of the search's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agl_cli_kit import main
from agl_core.errors import RunFailedError
from agl_core.statistics import estimate_gain, estimate_mean

pytest.importorskip("agl_store_sqlite")

PROGRAM = """
import agl_core as agl
from agl_algorithm_kit import run_batch

@agl.rollout
def agent(task, prompt_template):
    if prompt_template.template == "better" and task == 7:
        raise RuntimeError("the better prompt crashes here")
    return float(prompt_template.template == "better" or task % 2)

async def search(store, train_dataset):
    better = {"prompt": agl.PromptTemplate(template=BETTER, engine="f-string")}
    await run_batch(store, train_dataset, resources=better)
"""
FILE = """
agent = "program.py:agent"
algorithm = "program.py:search"
train_dataset = [101, 102]
test_dataset = [1, 2, 3, 4, 6, 7, 8]
store = { type = "sqlite", path = "runs.db" }
[resources.prompt]
type = "prompt_template"
engine = "f-string"
template = "seed"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "program", raising=False)
    (tmp_path / "program.py").write_text(PROGRAM.replace("BETTER", repr("better")))
    (tmp_path / "train.toml").write_text(FILE)
    return tmp_path


def test_the_gain_is_measured_on_the_test_tasks_and_printed(folder, capsys, monkeypatch):
    assert main(["train", "train.toml", "--json"]) == 0
    test = json.loads(capsys.readouterr().out.splitlines()[-1])["test"]
    before, after = [1, 0, 1, 0, 0, 1, 0], [1, 1, 1, 1, 1, 0, 1]
    assert test["before"] == pytest.approx(estimate_mean(before)._asdict())
    assert test["after"] == pytest.approx(estimate_mean(after)._asdict())
    assert test["gain"] == pytest.approx(estimate_gain(before, after)._asdict())
    assert (test["won"], test["lost"], test["tied"]) == (4, 1, 2)
    assert main(["eval", "train.toml", "--json"]) == 0  # the test changed no latest resources
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["resources_id"]


def test_a_finished_run_is_tested_later(folder, capsys):
    text = (folder / "train.toml").read_text()
    (folder / "train.toml").write_text(
        "\n".join(line for line in text.splitlines() if "test_dataset" not in line)
    )
    assert main(["train", "train.toml"]) == 0
    capsys.readouterr()
    (folder / "fresh.jsonl").write_text("12\n14\n")
    options = ["--resume", "--set", "test_dataset=fresh.jsonl"]
    assert main(["train", "train.toml", *options]) == 0
    out = capsys.readouterr().out
    assert "Test on 2 tasks that the run did not use" in out
    assert "2 won, 0 lost, 0 tied" in out
    assert "not shown" in out


BROKEN = """
import signal, threading

@agl.rollout
def agent(task, prompt_template, rollout):
    if rollout.mode == "test":
        HOW
    return 1.0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_test_that_is_interrupted_leaves_the_summary_of_the_training(folder, agl):
    how = "signal.raise_signal(signal.SIGINT) or threading.Event().wait(60)"
    (folder / "program.py").write_text(
        PROGRAM.replace("BETTER", repr("better")) + BROKEN.replace("HOW", how)
    )
    quick = ["--set", "strategy={type = 'shm', graceful_delay = 0.1}"]
    done = agl("train", "train.toml", *quick)
    assert done.returncode == 130, done.stderr
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert {"status succeeded", "succeeded 2", "no result: it was interrupted"} <= set(rows)
    assert any(row.startswith("best resources ") for row in rows)
    assert any(row.startswith("test it again: agl train train.toml") for row in rows)
    # Another store: with so short a delay, rollouts of the first test may be left in its queue.
    done = agl("train", "train.toml", "--json", *quick, "--set", "store.path=second.db")
    said = json.loads(done.stdout)
    assert (done.returncode, said["status"], said["test"]) == (130, "succeeded", None)
    assert said["test_error"] == "it was interrupted"


def test_a_test_that_fails_leaves_the_summary_of_the_training(folder, capsys, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise RunFailedError("evaluation: all 7 rollouts failed by the proxy")

    monkeypatch.setattr("agl_core.trainer.Trainer.compare", fails)
    assert main(["train", "train.toml"]) == 1
    shown = capsys.readouterr()
    assert "no result: evaluation: all 7 rollouts failed by the proxy" in shown.out
    assert shown.err.splitlines()[-1] == (
        "agl: error: the run is finished, its test failed: evaluation: all 7 rollouts failed by "
        "the proxy"
    )
    assert main(["train", "train.toml", "--json"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    said = json.loads(line)
    assert (said["status"], said["test"]) == ("succeeded", None)
    assert "failed by the proxy" in said["test_error"]


def test_a_test_task_that_the_search_uses_is_refused(folder, capsys):
    assert main(["train", "train.toml", "--set", "test_dataset=[1, 102]"]) == 2
    assert "1 of its 2 tasks are in train_dataset, too" in capsys.readouterr().err


def test_a_run_that_changed_no_prompt_is_not_tested(folder, capsys):
    (folder / "program.py").write_text(PROGRAM.replace("BETTER", repr("seed")))
    assert main(["train", "train.toml"]) == 0
    assert "not run: the run changed no prompt" in capsys.readouterr().out
