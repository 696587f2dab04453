"""Which model of a run was the best on the validation tasks, and where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from agl_algo_grpo.metrics import Metrics
from agl_algo_grpo.training import BEST, describe_best, is_better
from agl_algo_grpo.validation import Validation
from agl_core.algorithm import RewardRange
from agl_core.statistics import Estimate


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


def validated(step: int, *earned: float | None) -> dict[str, float]:
    found = Validation(Estimate(0.0, 0.0, 0.0, len(earned)), earned)
    return {"step": step, "rollouts": 1, "rows": 1, "seconds": 1.0} | found.figures()


def test_ranks_of_all_steps_are_on_the_scale_of_all_rewards(tmp_path: Path):
    """A failure costs little while rewards are alike, and more once they were seen to differ."""
    found = Metrics(tmp_path, 0)
    found.add(validated(0, 0.5, 0.6, None))
    assert found.column("val_rank") == [(0, pytest.approx((0.5 + 0.6 + 0.4) / 3))]
    found.add(validated(1, 0.0, 1.0, 0.4))
    # A failure counts -1 from now on, in the first step, too.
    assert [rank for _, rank in found.column("val_rank")] == pytest.approx([0.1 / 3, 1.4 / 3])


def test_a_resumed_run_ranks_with_the_rewards_that_it_has_seen_before(tmp_path: Path):
    Metrics(tmp_path, 0).add(validated(0, 0.0, 1.0))
    found = Metrics(tmp_path, 1)
    found.add(validated(1, 0.5, None))
    assert dict(found.column("val_rank")) == {0: 0.5, 1: pytest.approx(-0.25)}


def test_ranks_follow_a_declared_range_and_failures_alone_are_last(tmp_path: Path):
    found = Metrics(tmp_path / "declared", 0, reward_range=RewardRange(-2, 1))
    found.add(validated(0, 1.0, None))
    assert found.column("val_rank") == [(0, -0.5)]
    unknown = Metrics(tmp_path / "unknown", 0)
    unknown.add(validated(0, None, None))
    unknown.add(validated(1, 0.0, None))
    first, second = (rank for _, rank in unknown.column("val_rank"))
    assert first < second


def test_ranks_of_an_older_version_stay(tmp_path: Path):
    (tmp_path / "metrics.csv").write_text("step,val_reward,val_rank\n0,0.5,0.25\n")
    found = Metrics(tmp_path, 1)
    found.add(validated(1, 0.5, 0.7))
    assert dict(found.column("val_rank")) == {0: 0.25, 1: pytest.approx(0.6)}


def test_the_kept_model_is_replaced_by_one_that_is_better_on_the_scale_of_all_rewards(
    tmp_path: Path,
):
    found = Metrics(tmp_path, 0)
    best = tmp_path / BEST
    found.add(validated(0, 0.5, 0.6, None))
    assert is_better(found, best)
    best.mkdir()
    (best / "agl_step.txt").write_text("0")
    found.add(validated(1, 0.0, 1.0, 0.4))  # below the rank that step 0 had before it
    assert is_better(found, best)
    found.add(validated(2, 0.0, None, None))
    assert not is_better(found, best)
    (best / "agl_step.txt").write_text("99")  # another run's
    assert is_better(found, best)


def test_a_step_without_a_validation_is_not_the_best(tmp_path: Path):
    found = Metrics(tmp_path, 0)
    found.add({"step": 0, "rollouts": 1, "rows": 1, "seconds": 1.0})
    assert not is_better(found, tmp_path / BEST)
