"""How often ``agl promote`` promotes: candidates that are not better, and ones that are.

In null worlds the candidate is as good as the champion in the mean, and any promotion is false. The
anytime test is looked at after each of 300 pairs; the planned one at its four looks. The arrays
compute what :mod:`agl_promote` computes pair by pair; a test holds them to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from agl_core.statistics import t_quantile
from agl_promote.betting import STAKES
from agl_promote.planned import ALPHAS, LOOKS, looks_of

pytestmark = pytest.mark.benchmark

Array = np.ndarray
RUNS = 10_000
PAIRS = 300
_AT_ONCE = 2_500

Draw = Callable[[np.random.Generator, tuple[int, int], int], Array]
"""Makes differences: (generator, (runs, pairs), repeats)."""


def _tasks(chances: Callable[[np.random.Generator, tuple[int, int]], Array], gain: float) -> Draw:
    def draw(rng: np.random.Generator, shape: tuple[int, int], k: int) -> Array:
        p = chances(rng, shape)
        return (rng.binomial(k, np.clip(p + gain, 0, 1)) - rng.binomial(k, p)) / k

    return draw


def _hard_or_easy(rng: np.random.Generator, shape: tuple[int, int], easy: float = 0.85) -> Array:
    return np.where(rng.random(shape) < 0.5, easy, 0.1)


def _other_tasks(gain: float) -> Draw:
    """Each solves half of the tasks, independently of the other."""

    def draw(rng: np.random.Generator, shape: tuple[int, int], k: int) -> Array:
        champion, candidate = (
            rng.binomial(k, np.where(rng.random(shape) < share, 0.97, 0.03)) / k
            for share in (0.5, 0.5 + gain / 0.94)
        )
        return candidate - champion

    return draw


def _beta(gain: float) -> Draw:
    def draw(rng: np.random.Generator, shape: tuple[int, int], k: int) -> Array:
        a = rng.uniform(0.5, 4, (*shape, 1))
        champion, candidate = (rng.beta(a, 2, (*shape, k)).mean(axis=2) for _ in range(2))
        return np.clip(candidate + gain, 0, 1) - champion

    return draw


def _beta_other_tasks(rng: np.random.Generator, shape: tuple[int, int], k: int) -> Array:
    champion, candidate = (
        rng.beta(rng.uniform(0.5, 4, (*shape, 1)), 2, (*shape, k)).mean(axis=2) for _ in range(2)
    )
    return candidate - champion


def _rare_loss(rng: np.random.Generator, shape: tuple[int, int], k: int) -> Array:
    """A little better on 95 % of the tasks, a disaster on 5 %; equal in the mean."""
    del k
    return np.where(rng.random(shape) < 0.05 / 1.05, -1.0, 0.05)


RARE = "rare loss"
NULL_WORLDS: dict[str, Draw] = {
    "hard or easy": _tasks(_hard_or_easy, 0.0),
    "uniform": _tasks(lambda rng, shape: rng.random(shape), 0.0),
    "other tasks": _other_tasks(0.0),
    "mean .9": _tasks(lambda _, shape: np.full(shape, 0.9), 0.0),
    "mean .03": _tasks(lambda _, shape: np.full(shape, 0.03), 0.0),
    "beta": _beta(0.0),
    "beta, other tasks": _beta_other_tasks,
    RARE: _rare_loss,
}
GAIN_WORLDS: dict[str, Draw] = {
    "hard or easy +.1": _tasks(_hard_or_easy, 0.1),
    "hard or easy +.2": _tasks(partial(_hard_or_easy, easy=0.8), 0.2),
    "uniform +.1": _tasks(lambda rng, shape: rng.random(shape), 0.1),
    "other tasks +.1": _other_tasks(0.1),
    "other tasks +.2": _other_tasks(0.2),
    "beta +.1": _beta(0.1),
}


def anytime(differences: Array, alpha: float = 0.05) -> tuple[Array, Array]:
    """Return which runs are ever promoted, and the pairs that each used.

    Args:
        differences: Shape (runs, pairs).
        alpha: Error.
    """
    logs = np.stack([np.log1p(stake * differences).cumsum(axis=1) for stake in STAKES])
    wealth = np.logaddexp.reduce(logs, axis=0) - math.log(len(STAKES))
    crossed = wealth >= -math.log(alpha)
    promoted = crossed.any(axis=1)
    return promoted, np.where(promoted, crossed.argmax(axis=1) + 1, differences.shape[1])


def planned(differences: Array, alpha: float = 0.05) -> tuple[Array, Array]:
    """Do as :func:`anytime`, for the planned test."""
    from statistics import NormalDist

    runs, tasks = differences.shape
    promoted, used = np.zeros(runs, bool), np.full(runs, tasks)
    for look, pairs in enumerate(looks_of(tasks), start=1):
        values = differences[:, :pairs]
        n = pairs + 2
        mean = values.sum(axis=1) / n
        squares = ((values - mean[:, None]) ** 2).sum(axis=1) + (1 + mean) ** 2 + (1 - mean) ** 2
        probability = NormalDist().cdf(ALPHAS[alpha] * math.sqrt(LOOKS / look))
        bound = mean - t_quantile(probability, n - 1) * np.sqrt(squares / (n - 1) / n)
        now = ~promoted & (bound > 0)
        used[now] = pairs
        promoted |= now
    return promoted, used


Test = Callable[[Array], tuple[Array, Array]]


def rates(
    draw: Draw, test: Test, runs: int, pairs: int = PAIRS, repeats: int = 1, seed: int = 0
) -> tuple[float, float]:
    """Return the share of runs that promote, and the mean number of pairs."""
    rng = np.random.default_rng([seed, pairs, repeats])
    promoted, used = 0, 0
    for at in range(0, runs, _AT_ONCE):
        shape = (min(_AT_ONCE, runs - at), pairs)
        ever, taken = test(draw(rng, shape, repeats))
        promoted, used = promoted + int(ever.sum()), used + int(taken.sum())
    return promoted / runs, used / runs


def test_tables() -> None:
    print(f"\nfalse promotions, {RUNS:,} runs, at most {PAIRS} pairs")
    print(f"{'world':20} {'anytime':>8} {'planned':>8}")
    for name, draw in NULL_WORLDS.items():
        found = [rates(draw, test, RUNS)[0] for test in (anytime, planned)]
        print(f"{name:20} {found[0]:8.2%} {found[1]:8.2%}")
    print("\npower (mean pairs)")
    print(f"{'world, pairs x repeats':30} {'anytime':>12} {'planned':>12}")
    for name, draw in GAIN_WORLDS.items():
        for pairs, repeats in ((300, 1), (100, 1), (100, 4), (48, 4)):
            cells = [rates(draw, test, RUNS, pairs, repeats) for test in (anytime, planned)]
            told = [f"{power:.2f} ({used:3.0f})" for power, used in cells]
            print(f"{name:19} {pairs:4}x{repeats:<5} {told[0]:>12} {told[1]:>12}")
