"""Bias and variance of the estimators, exactly: every group that can be sampled is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pytest

from agl_credit import (
    Path,
    choose_forks,
    forked_advantages,
    group_advantages,
    rtmc_advantages,
    tempo_advantages,
    turn_advantages,
)
from tests.plugins.agl_credit.bandit_tree import Environment, State

Estimator = Callable[[Sequence[Path]], list[np.ndarray]]
Groups = Iterator[tuple[list[Path], float]]


def policy(state: State) -> list[float]:
    return [[0.3, 0.7], [0.6, 0.4], [0.5, 0.5]][(len(state) + sum(state)) % 3]


def reward(end: State) -> float:
    """The last turn decides most, and what is right there depends on the first."""
    return 0.25 * end[0] + float(end[-1] == end[0]) + 0.1 * sum(end)


def moments(
    env: Environment, groups: Groups, estimate: Estimator, roots: int
) -> tuple[float, float, float]:
    """Return the largest bias of the gradient, its variance, and the probability of all groups."""
    mean: dict[tuple[State, int], float] = {}
    square: dict[tuple[State, int], float] = {}
    total = 0.0
    for group, p in groups:
        total += p
        for key, value in env.score(group, estimate(group)).items():
            mean[key] = mean.get(key, 0.0) + p * value / roots
            square[key] = square.get(key, 0.0) + p * (value / roots) ** 2
    exact = env.gradient()
    bias = max(abs(mean.get(key, 0.0) - exact[key]) for key in exact)
    return bias, sum(square[key] - mean[key] ** 2 for key in exact), total


def with_forks(
    env: Environment, size: int, choose: Callable[[list[Path]], list[tuple[int, int]]]
) -> Groups:
    for group, p in env.groups(size):
        for forked, q in env.forks(group, choose(group)):
            yield forked, p * q


leave_one_out: Estimator = partial(turn_advantages, leave_one_out=True, normalise=False)
forked: Estimator = partial(forked_advantages, normalise=False)


@pytest.mark.parametrize(
    "estimate",
    [leave_one_out, partial(rtmc_advantages, normalise=False), forked],
    ids=["leave-one-turn-out", "rtmc", "forked without forks"],
)
def test_the_gradient_without_forks_is_unbiased(estimate: Estimator):
    env = Environment(3, policy, reward)
    bias, _, total = moments(env, env.groups(2), estimate, 2)
    assert total == pytest.approx(1)
    assert bias < 1e-12


def test_a_baseline_that_contains_the_rollout_scales_the_gradient():
    env = Environment(3, policy, reward)
    bias, _, _ = moments(env, env.groups(2), partial(group_advantages, normalise=False), 2)
    # (n - 1) / n of the gradient: half of it for groups of two.
    assert bias == pytest.approx(max(map(abs, env.gradient().values())) / 2)


def test_tempo_is_biased_in_small_groups():
    env = Environment(2, policy, reward)
    found = moments(env, env.groups(2), partial(tempo_advantages, normalise=False), 2)
    assert found[0] > 0.01


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_gradient_with_forks_is_unbiased(at: int):
    env = Environment(3, policy, reward)
    groups = with_forks(env, 2, lambda group: [(0, at)])
    bias, _, total = moments(env, groups, forked, 2 + (at == 0))
    assert total == pytest.approx(1)
    assert bias < 1e-12


def test_two_forks_of_one_rollout_are_unbiased():
    env = Environment(3, policy, reward)
    groups = with_forks(env, 2, lambda group: [(0, 1), (0, 2)])
    assert moments(env, groups, forked, 2)[0] < 1e-12


def most_surprising(path: Path, first: int = 1) -> int:
    return max(range(first, len(path.turns)), key=lambda t: path.turns[t].surprisal)


def test_forks_chosen_by_the_surprisal_of_another_rollout_are_unbiased():
    env = Environment(3, policy, reward)
    groups = with_forks(env, 2, lambda group: [(0, most_surprising(group[1]))])
    assert moments(env, groups, forked, 2)[0] < 1e-12


def test_forks_chosen_by_their_own_surprisal_are_biased():
    """Why `choose_forks` does not look at the rollout itself."""
    env = Environment(3, policy, reward)
    groups = with_forks(env, 2, lambda group: [(0, most_surprising(group[0]))])
    assert moments(env, groups, forked, 2)[0] > 1e-3


@pytest.mark.parametrize(("decisive", "helps"), [(-1, True), (0, False)], ids=["last", "first"])
def test_forks_of_the_last_turn_beat_a_rollout_where_that_turn_decides(decisive: int, helps: bool):
    """Four forks of the last of four turns cost as many tokens as one more rollout."""
    env = Environment(4, policy, lambda end: float(end[decisive]))
    forks = with_forks(env, 2, lambda group: [(0, 3), (0, 3), (1, 3), (1, 3)])
    _, with_forks_, _ = moments(env, forks, forked, 2)
    _, with_rollout, _ = moments(env, env.groups(3), leave_one_out, 3)
    print(f"variance with 4 forks: {with_forks_:.4f}, with 3 rollouts: {with_rollout:.4f}")
    assert (with_forks_ < with_rollout) == helps


def test_the_advantage_of_a_turn_has_the_exact_expectation():
    """E[A | the state and the action of the turn] is the advantage of the policy."""
    env = Environment(3, policy, reward)
    sums: dict[tuple[State, int], float] = {}
    weights: dict[tuple[State, int], float] = {}
    estimate = partial(forked_advantages, normalise=False, weighted=False)
    for group, p in with_forks(env, 2, lambda group: [(0, 1), (0, 2)]):
        for turn, advantage in zip(group[0].turns, estimate(group)[0], strict=True):
            assert isinstance(turn.state, tuple)
            assert isinstance(turn.action, int)
            key = (turn.state, turn.action)
            sums[key] = sums.get(key, 0.0) + p * float(advantage)
            weights[key] = weights.get(key, 0.0) + p
    assert len(sums) == 14
    for (state, action), total in sums.items():
        expected = env.advantage(state, action)
        assert total / weights[state, action] == pytest.approx(expected, abs=1e-12)


def test_the_budget_is_drawn_from_the_other_rollouts():
    """The scores of a rollout are the surprisals of the others."""
    env = Environment(2, lambda state: [0.5, 0.5] if state else [1.0, 0.0], reward)
    group = [env.path((0, 0)), env.path((0, 1))]
    points = choose_forks(group, 4, rng=np.random.default_rng(0))
    assert [(point.path, point.at) for point in points] == [(0, 1), (1, 1)]
