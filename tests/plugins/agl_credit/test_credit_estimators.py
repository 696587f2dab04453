"""The estimators against advantages worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agl_credit import (
    Path,
    Turn,
    TurnSpread,
    agent_advantages,
    choose_forks,
    forked_advantages,
    group_advantages,
    rtmc_advantages,
    tempo_advantages,
    turn_advantages,
)


def path(
    reward: float, actions: str, parent: int | None = None, at: int = 0, surprisal: float = 1.0
) -> Path:
    """Return a path whose states are the actions so far."""
    turns = [Turn(actions[:t], a, surprisal=surprisal) for t, a in enumerate(actions)]
    return Path(reward, turns, parent=parent, at=at)


def lists(advantages: list[np.ndarray]) -> list[list[float]]:
    return [[round(float(a), 6) for a in of_turns] for of_turns in advantages]


def test_every_turn_has_the_advantage_of_its_rollout():
    group = [path(1, "ab"), path(0, "a"), path(0.5, "abc")]
    assert lists(group_advantages(group, normalise=False)) == [[0.5, 0.5], [-0.5], [0, 0, 0]]
    normalised = group_advantages(group)
    assert normalised[0][0] == pytest.approx(0.5 / (0.5 + 1e-6))


def test_equal_rewards_give_no_advantage():
    group = [path(0.1, "ab"), path(0.1, "b")]
    for estimate in (
        group_advantages,
        agent_advantages,
        turn_advantages,
        tempo_advantages,
        rtmc_advantages,
        forked_advantages,
    ):
        assert lists(estimate(group)) == [[0, 0], [0]]


def test_discounted_returns_are_compared_turn_by_turn():
    late = Path(1.0, [Turn("", "a", reward=0.5), Turn("a", "b"), Turn("ab", "c")])
    none = path(0, "ab")
    # Returns 0.5 + 0.5 * (0.5 * 1), 0.5, 1 and 0, 0; the shorter rollout counts with its last.
    found = turn_advantages([late, none], discount=0.5, normalise=False)
    assert lists(found) == [[0.375, 0.25, 0.5], [-0.375, -0.25]]
    left_out = turn_advantages([late, none], discount=0.5, leave_one_out=True, normalise=False)
    assert lists(left_out) == [[0.75, 0.5, 1.0], [-0.75, -0.5]]


@pytest.mark.parametrize("reward", [-1.0, 1.0])
def test_a_rollout_without_turns_counts_with_its_reward(reward: float):
    group = [path(1.0, "a"), path(0.0, "b"), path(reward, "")]
    found = turn_advantages(group, normalise=False)
    assert lists(found) == lists(group_advantages(group, normalise=False))
    assert lists(found)[2] == []


def test_agents_are_trained_on_their_own_rewards():
    turns = [Turn("", "x", agent="solver"), Turn("x", "y", agent="critic")]
    group = [
        Path(1.0, turns, rewards={"critic": 0.0}),
        Path(0.0, turns, rewards={"critic": 0.5}),
    ]
    found = agent_advantages(group, normalise=False)
    assert lists(found) == [[0.5, -0.25], [-0.5, 0.25]]


def test_tempo_adds_the_change_of_the_prefix_value():
    group = [path(1, "ab"), path(0, "ac"), path(1, "bb"), path(1, "bc")]
    # Values: start 3/4, after a 1/2, after b 1; the mean reward is 3/4.
    expected = [
        [0.25 - 0.25, 0.25 + 0.5],
        [-0.75 - 0.25, -0.75 - 0.5],
        [0.25 + 0.25, 0.25],
        [0.25 + 0.25, 0.25],
    ]
    assert lists(tempo_advantages(group, normalise=False)) == expected


def test_rtmc_compares_an_action_with_the_other_visits_of_its_state():
    group = [path(1, "ab"), path(0, "ac"), path(1, "bb")]
    # First turn: Q(a) = 1/2, Q(b) = 1; the others' means are 1/2, 1, 1/2. After a there is one
    # other visit; after b none, so the baseline of the first turn stays.
    expected = [[0.0, 1.0], [-0.5, -1.0], [0.5, 0.5]]
    assert lists(rtmc_advantages(group, normalise=False)) == expected


def test_a_fork_is_compared_with_its_siblings():
    group = [path(1, "abc"), path(0, "xyz"), path(0, "abd", parent=0, at=2)]
    # The node after "ab" has the rewards 1 and 0: its value is 1/2.
    expected = [[0.5, 0.5, 1.0 / 2], [-0.5, -0.5, -0.5], [0, 0, -1.0 / 2]]
    assert lists(forked_advantages(group, normalise=False)) == expected
    unweighted = forked_advantages(group, normalise=False, weighted=False)
    assert lists(unweighted) == [[0.5, 0.5, 1.0], [-0.5, -0.5, -0.5], [0, 0, -1.0]]


def test_forks_of_forks_share_the_weight_of_their_branch():
    group = [
        path(1, "abcd"),
        path(0, "wxyz"),
        path(0, "abef", parent=0, at=2),
        path(1, "abeg", parent=2, at=3),
        path(1, "abhi", parent=2, at=2),  # repeats only turns that the first path sampled
    ]
    found = forked_advantages(group, normalise=False)
    # After "abe": rewards 0 and 1, value 1/2. After "ab": 1, 1/2 and 1, value 5/6.
    third = 1 / 3
    expected = [
        [5 / 6, 5 / 6, third * 0.25, third * 0.25],
        [-5 / 6] * 4,
        [0, 0, third * -0.5, third / 2 * -1],
        [0, 0, 0, third / 2 * 1],
        [0, 0, third * 0.25, third * 0.25],
    ]
    for row, wanted in zip(found, expected, strict=True):
        assert row == pytest.approx(wanted)


def test_a_fork_of_the_first_turn_is_a_root():
    group = [path(1, "a"), path(0, "b", parent=0, at=0), path(0, "c")]
    assert lists(forked_advantages(group, normalise=False)) == [[1], [-0.5], [-0.5]]


def test_a_fork_cannot_repeat_more_than_its_parent_has():
    with pytest.raises(ValueError, match="path 1 cannot repeat 2 turns of path 0"):
        forked_advantages([path(1, "ab"), path(0, "abc", parent=0, at=2)])


def test_rollouts_without_turns_have_no_advantages():
    group = [Path(1.0, []), path(0, "ab")]
    for estimate in (turn_advantages, tempo_advantages, rtmc_advantages, forked_advantages):
        assert [len(of_turns) for of_turns in estimate(group)] == [0, 2]


def test_forks_follow_the_spread_of_earlier_steps():
    spread = TurnSpread(decay=0.5)
    group = [path(1, "abc"), path(0, "abd")]
    spread.update(group, [np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.0, -1.0])])
    rng = np.random.default_rng(0)
    points = choose_forks(group, 6, by="spread", rng=rng, spread=spread)
    assert [(point.path, point.at) for point in points] == [(0, 2), (1, 2)]
    spread.update(group, [np.array([2.0, 0.0, 0.0]), np.array([2.0, 0.0, 0.0])])
    assert spread.means == {0: 2.0, 1: 0.0, 2: 0.5}


def test_a_rollout_that_ends_before_its_turn_is_not_forked_elsewhere():
    short, long = path(1, "a"), path(0, "abcd", surprisal=0.0)
    assert choose_forks([short, long], 1, rng=np.random.default_rng(0)) == []  # no surprisal
    uniform = choose_forks([short, long], 40, by="uniform", rng=np.random.default_rng(0))
    assert [(point.path, point.at) for point in uniform] == [(0, 0), (1, 0)]


def test_a_dear_fork_is_chosen_less_often():
    """The first turn costs 1 + 9 tokens to sample again, the second 9."""
    turns = [Turn("", "a", surprisal=1.0), Turn("a", "b", surprisal=0.1, tokens=9)]
    group = [Path(1.0, turns), Path(0.0, turns)]
    rng = np.random.default_rng(0)
    drawn = [choose_forks(group, 1, rng=rng)[0].at for _ in range(2000)]
    assert np.mean(drawn) == pytest.approx((0.1 / 9) / (1 / 10 + 0.1 / 9), abs=0.02)


def test_the_same_seed_chooses_the_same_forks():
    group = [path(1, "abcd"), path(0, "abce")]
    drawn = [choose_forks(group, 4, rng=np.random.default_rng(7)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert 1 <= len(drawn[0]) <= 4
