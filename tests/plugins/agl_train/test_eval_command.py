from __future__ import annotations

import json

import pytest

from agl_cli_kit import main
from agl_core.statistics import estimate_mean


def test_it_scores_with_an_interval(project, agl):
    done = agl("eval", "train.toml", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    said = json.loads(done.stdout)
    metrics = said["metrics"]
    expected = estimate_mean([1.0, 1.0, 0.0])
    assert (metrics["mean"], metrics["low"], metrics["high"]) == expected[:3]
    assert metrics["tasks"] == metrics["succeeded"] == 3
    assert metrics["without_reward"] == 0
    assert metrics["confidence"] == 0.95
    assert said["status"] == "succeeded"


def test_it_prints_a_table(project, agl):
    done = agl("eval", "train.toml")
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert ["score", "0.667"] in lines
    assert any(line.startswith("95 % interval") for line in done.stdout.splitlines())


@pytest.mark.usefixtures("project")
def test_a_score_in_this_process_is_the_same(capsys):
    assert main(["eval", "train.toml", "--json", "--timeout", "60"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["mean"] == pytest.approx(2 / 3)
    assert main(["eval", "train.toml"]) == 0
    assert "95 % interval" in capsys.readouterr().out


def test_a_score_of_one_task_says_little(project, agl):
    done = agl(
        "eval", "train.toml", "--json", "--set", "agent=agl_cli_agent:Solver",
        "--set", "val_dataset=[1]",
    )  # fmt: skip
    metrics = json.loads(done.stdout)["metrics"]
    assert (metrics["mean"], metrics["low"], metrics["high"]) == estimate_mean([0.5])[:3]


def test_a_dataset_of_its_own_and_a_failing_agent(project, agl):
    (project / "other.csv").write_text("q,a\nx,x!\n")
    done = agl("eval", "train.toml", "--json", "--dataset", "other.csv")
    assert json.loads(done.stdout)["metrics"]["mean"] == 1.0, done.stderr

    (project / "missing.csv").write_text("q\nx\n")
    done = agl("eval", "train.toml", "--json", "--dataset", "missing.csv")
    metrics = json.loads(done.stdout)["metrics"]
    assert (metrics["mean"], metrics["without_reward"], metrics["failed"]) == (None, 1, 1)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "agl: error: 1 of 1 failed: KeyError 'a'"
    assert json.loads(done.stdout)["status"] == "failed"


def test_the_algorithm_is_not_even_built(project, agl):
    with (project / "agl_cli_agent.py").open("a") as file:
        file.write("\ndef never():\n    raise RuntimeError('built')\n")
    done = agl("eval", "train.toml", "--json", "--set", "algorithm=agl_cli_agent:never")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "gone.jsonl"], "--dataset: "),
        (["--timeout", "0"], "0.0 is not in the range"),
        (["--set", "store=x.toml"], "train.toml: store: "),
    ],
)
def test_mistakes(project, capsys, arguments, message):
    assert main(["eval", "train.toml", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_without_a_dataset(project, capsys):
    text = (project / "train.toml").read_text()
    kept = [line for line in text.splitlines() if "_dataset" not in line]
    (project / "bare.toml").write_text("\n".join(kept))
    assert main(["eval", "bare.toml"]) == 2
    assert "bare.toml: has no val_dataset; add one or give --dataset" in capsys.readouterr().err
