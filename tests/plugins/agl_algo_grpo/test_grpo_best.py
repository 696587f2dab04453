"""Which model of a run was the best on the validation tasks, and where it is."""

from __future__ import annotations

from pathlib import Path

from agl_algo_grpo.metrics import Metrics
from agl_algo_grpo.training import BEST, describe_best


def metrics(folder: Path, *scores: float) -> Metrics:
    found = Metrics(folder, 0)
    for step, score in enumerate(scores):
        row = {"step": step, "rollouts": 1, "rows": 1, "seconds": 1.0, "val_reward": score}
        found.add(row)
    return found


def test_one_validation_chose_nothing(tmp_path: Path):
    assert describe_best(metrics(tmp_path, 0.5), tmp_path, 1) == ""


def test_the_best_and_the_last_model_are_named(tmp_path: Path):
    (tmp_path / BEST).mkdir()
    (tmp_path / BEST / "agl_step.txt").write_text("1")
    told = describe_best(metrics(tmp_path, 0.2, 0.6, 0.5), tmp_path, 3)
    assert "chose among 3 models" in told
    assert f"the best, 0.600 at step 1, is in {tmp_path / BEST}" in told
    assert "the last scores 0.500" in told


def test_a_model_of_another_step_is_not_named_as_the_best(tmp_path: Path):
    (tmp_path / BEST).mkdir()
    (tmp_path / BEST / "agl_step.txt").write_text("0")
    assert "is not kept" in describe_best(metrics(tmp_path, 0.2, 0.6, 0.5), tmp_path, 3)


def test_the_last_model_may_be_the_best(tmp_path: Path):
    told = describe_best(metrics(tmp_path, 0.2, 0.6), tmp_path, 2)
    assert told.endswith("the last model is the best: 0.600")


def test_the_best_model_is_that_of_the_highest_rank(tmp_path: Path):
    found = metrics(tmp_path, 0.2, 0.6, 0.5)
    for row, rank in zip(found.steps, [0.1, 0.2, 0.4], strict=True):
        row["val_rank"] = rank  # a model that fails on tasks ranks lower than its score says
    assert describe_best(found, tmp_path, 3).endswith("the last model is the best: 0.500")
