"""What a failed rollout counts, on every scale."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_algorithm_kit import run_batch
from agl_core.agent import rollout
from agl_core.algorithm import (
    BatchOutcome,
    RewardRange,
    RewardScale,
    RolloutOutcome,
    algo,
    earned_reward,
)
from agl_core.errors import ConfigError
from agl_core.trainer import Trainer
from agl_core.types import Rollout, RolloutStatus
from agl_store_memory import InMemoryLightningStore

# Multiples of 1/8 are exact, so that shifts and factors lose no digit.
REWARDS = st.lists(st.integers(-800, 800).map(lambda n: n / 8), min_size=1, max_size=20)


def scale_of(rewards: list[float], declared: Any = None) -> RewardScale:
    scale = RewardScale(RewardRange.of(declared))
    scale.learn(rewards)
    return scale


@given(REWARDS)
def test_failure_is_below_every_finished_rollout(rewards: list[float]) -> None:
    assert scale_of(rewards).failure < min(rewards)


@given(REWARDS, st.sampled_from([0.5, 1.0, 8.0]), st.integers(-50, 50))
def test_shifted_and_scaled_rewards_rank_the_same(
    rewards: list[float], factor: float, shift: int
) -> None:
    failure = scale_of(rewards).failure
    moved = scale_of([factor * reward + shift for reward in rewards]).failure
    if len(set(rewards)) > 1:
        assert moved == factor * failure + shift
    else:  # there is no scale to follow
        assert moved == factor * rewards[0] + shift - 1


@given(REWARDS)
def test_declared_range_decides(rewards: list[float]) -> None:
    assert scale_of(rewards, (-200, 200)).failure == -200
    assert scale_of([], (-200, 200)).failure == -200


def test_rewards_outside_the_declared_range_are_named(caplog: pytest.LogCaptureFixture) -> None:
    scale = scale_of([0.5, -3.0], (0, 1))
    scale.learn([7.0])
    assert scale.failure == -3.0
    assert scale.target is None
    assert caplog.messages == [
        "There are rewards from -3 to 0.5, outside the declared reward_range (0, 1)"
    ]


def test_failure_is_last_where_nothing_finished() -> None:
    assert scale_of([]).failure == -math.inf


@pytest.mark.parametrize(
    ("rewards", "declared", "target"),
    [
        ([], None, 1.0),
        ([1.0, 0.0], None, 1.0),
        ([3.0], None, None),  # a scale that goes beyond 1
        ([3.0], (0, 10), 10.0),
        ([-3.0], (-5, 0), 0.0),
    ],
)
def test_target(rewards: list[float], declared: Any, target: float | None) -> None:
    assert scale_of(rewards, declared).target == target


@pytest.mark.parametrize("wrong", [(1, 0), (0, 0), (0,), 1, "ab", (0, math.inf), (math.nan, 1)])
def test_wrong_ranges(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="reward_range: must be the lowest and the highest"):
        Trainer(strategy="shm", reward_range=wrong)


@pytest.mark.parametrize(
    ("status", "reward", "earned"),
    [
        ("succeeded", 0.0, 0.0),
        ("succeeded", -2.0, -2.0),
        ("succeeded", None, None),
        ("succeeded", math.nan, None),
        ("succeeded", math.inf, None),
        ("failed", 1.0, None),  # emitted before the crash
        ("cancelled", 1.0, None),
    ],
)
def test_earned_reward(status: RolloutStatus, reward: float | None, earned: float | None) -> None:
    assert earned_reward(status, reward) == earned


def batch_of(*rewards: float | None, declared: Any = None) -> BatchOutcome:
    return BatchOutcome(
        [
            RolloutOutcome(
                Rollout(
                    rollout_id=f"ro-{i}",
                    input=i,
                    start_time=1.0,
                    status="failed" if reward is None else "succeeded",
                ),
                reward,
                [],
            )
            for i, reward in enumerate(rewards)
        ],
        reward_range=RewardRange.of(declared),
    )


def test_batches_count_failures_last() -> None:
    assert batch_of(-1.0, None, -3.0).rewards() == [-1.0, -5.0, -3.0]
    assert batch_of(-1.0, None, -3.0, declared=(-10, 0)).rewards() == [-1.0, -10.0, -3.0]
    assert batch_of(-1.0, None).rewards(missing=None) == [-1.0]


def test_a_printed_score_counts_the_lowest_possible_reward_for_failures() -> None:
    assert batch_of(0.5, None).score().mean == 0.25
    assert batch_of(-1.0, None, -3.0).score().mean == pytest.approx(-7 / 3)
    assert batch_of(-1.0, None, declared=(-10, 0)).score().mean == -5.5
    assert batch_of(-1.0, None, declared=(-10, 0)).score(reward_range=(-2, 0)).mean == -1.5
    assert batch_of(None, None).score().mean == -math.inf
    assert batch_of(None, None, declared=(1, 2)).score().mean == 1.0
    # Rewards outside the declared range widen it: the score of a long run must not be lost.
    outside = batch_of(-12.0, None, declared=(-10, 0)).score()
    assert (outside.mean, outside.low) == (-12.0, -12.0)


def test_the_reward_of_a_rollout_that_failed_later_is_no_part_of_a_score() -> None:
    kept, crashed = batch_of(0.5, 0.5), batch_of(0.5, None)
    crashed = replace(crashed, outcomes=[crashed[0], replace(crashed[1], reward=1.0)])
    assert crashed.score().mean == 0.25
    assert crashed.pass_at(1, threshold=0.5).mean == 0.5
    assert crashed.gain_over(kept).mean == -0.25


def test_a_gain_counts_failures_on_the_declared_range() -> None:
    before, after = batch_of(1.0, 1.0, declared=(-4, 4)), batch_of(1.0, None, declared=(-4, 4))
    gain = after.gain_over(before)
    assert gain.mean == -2.5
    assert gain == after.gain_over(before, reward_range=(-4, 4))


@pytest.mark.parametrize("place", ["trainer", "agent"])
def test_declared_range_reaches_batches(place: str) -> None:
    declared = {"reward_range": (-7, 0)}
    found: list[float] = []

    @rollout(**declared if place == "agent" else {})  # pyright: ignore
    def agent(task: float) -> float:
        if task > 0:
            raise RuntimeError("broken")
        return task

    @algo
    async def algorithm(store: Any, run: Any, train_dataset: Any) -> None:
        found.extend((await run_batch(store, train_dataset, run=run)).rewards())

    trainer = Trainer(
        algorithm=algorithm,
        strategy="shm",
        store=InMemoryLightningStore(),
        reward_range=declared.get("reward_range") if place == "trainer" else None,
    )
    trainer.fit(agent, [-2.0, 1.0])
    assert found == [-2.0, -7.0]
