"""How often the printed intervals hold the truth, in simulated worlds whose truth is known.

The table has a row per world and a column per number of tasks, with the lowest coverage over 1 to 8
rollouts of each task. 95 % is promised, and 93 % is the least in every cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from agl_core.statistics import estimate_mean, t_quantile

pytestmark = pytest.mark.benchmark

Array = np.ndarray
TASKS = (8, 12, 24, 48, 100, 300)
REPEATS = (1, 2, 4, 8)
CELLS = [(n, k) for n in TASKS for k in REPEATS]
RUNS = 20_000
_AT_ONCE = 4_000  # runs in one array

Draw = Callable[[np.random.Generator, tuple[int, int], int], Array]
"""Makes means of repeats, one per run and task: (generator, (runs, tasks), repeats)."""


def _binary(chances: Callable[[np.random.Generator, tuple[int, int]], Array]) -> Draw:
    return lambda rng, shape, k: rng.binomial(k, chances(rng, shape)) / k


def _graded(rewards: Callable[[np.random.Generator, tuple[int, ...]], Array]) -> Draw:
    return lambda rng, shape, k: rewards(rng, (*shape, k)).mean(axis=2)


def _share(p: float) -> tuple[Draw, float]:
    return _binary(lambda _, shape: np.full(shape, p)), p


def _hard_or_easy(easy: float) -> tuple[Draw, float]:
    draw = _binary(lambda rng, shape: np.where(rng.random(shape) < easy, 0.97, 0.03))
    return draw, easy * 0.97 + (1 - easy) * 0.03


def _beta(a: float, b: float) -> tuple[Draw, float]:
    return _graded(lambda rng, shape: rng.beta(a, b, shape)), a / (a + b)


def _two_rewards(p: float, often: float, seldom: float) -> tuple[Draw, float]:
    draw = _graded(lambda rng, shape: np.where(rng.random(shape) < p, often, seldom))
    return draw, p * often + (1 - p) * seldom


MEAN_WORLDS: dict[str, tuple[Draw, float]] = {
    **{f"share {p}": _share(p) for p in (0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99)},
    **{f"hard or easy {p}": _hard_or_easy(p) for p in (0.1, 0.5, 0.9)},
    "difficulty uniform": (_binary(lambda rng, shape: rng.random(shape)), 0.5),
    "difficulty beta .5 .5": (_binary(lambda rng, shape: rng.beta(0.5, 0.5, shape)), 0.5),
    "difficulty beta 1 9": (_binary(lambda rng, shape: rng.beta(1, 9, shape)), 0.1),
    "graded uniform": _beta(1, 1),
    "graded beta 2 8": _beta(2, 8),
    "graded beta 20 1": _beta(20, 1),
    "graded beta .3 3": _beta(0.3, 3),
    "graded 1.0 or .99": _two_rewards(0.9, 1.0, 0.99),
    "graded .95, seldom 0": _two_rewards(0.95, 0.95, 0.0),
}
"""By name, rewards and their true mean."""


def _clipped(p: Array, gain: float) -> Array:
    return np.clip(p + gain, 0, 1)


Pairs = Callable[[np.random.Generator, tuple[int, int], int], tuple[Array, Array]]


def _same_tasks(chances: Callable[..., Array], gain: float) -> Pairs:
    def draw(rng: np.random.Generator, shape: tuple[int, int], k: int) -> tuple[Array, Array]:
        p = chances(rng, shape)
        return rng.binomial(k, p) / k, rng.binomial(k, _clipped(p, gain)) / k

    return draw


def _other_tasks(rng: np.random.Generator, shape: tuple[int, int], k: int) -> tuple[Array, Array]:
    """Both solve half of the tasks, independently of each other."""
    return tuple(  # type: ignore[return-value]
        rng.binomial(k, np.where(rng.random(shape) < 0.5, 0.97, 0.03)) / k for _ in range(2)
    )


def _beta_pairs(rng: np.random.Generator, shape: tuple[int, int], k: int) -> tuple[Array, Array]:
    a = rng.uniform(0.5, 4, (*shape, 1))
    return tuple(rng.beta(a, 2, (*shape, k)).mean(axis=2) for _ in range(2))  # type: ignore[return-value]


GAIN_WORLDS: dict[str, tuple[Pairs, float]] = {
    "hard or easy": (
        _same_tasks(lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.8, 0.1), 0.0),
        0.0,
    ),
    "hard or easy, +.1": (
        _same_tasks(lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.8, 0.1), 0.1),
        0.1,
    ),
    "uniform": (_same_tasks(lambda rng, shape: rng.random(shape), 0.0), 0.0),
    "other tasks": (_other_tasks, 0.0),
    "mean .9": (_same_tasks(lambda _, shape: np.full(shape, 0.9), 0.0), 0.0),
    "mean .03": (_same_tasks(lambda _, shape: np.full(shape, 0.03), 0.0), 0.0),
    "beta": (_beta_pairs, 0.0),
}
"""By name, pairs of rewards and their true mean difference."""


def _covers(values: Array, low: float, high: float, truth: float) -> Array:
    """Return which rows' intervals hold the truth: the formula of the module, on arrays.

    Args:
        values: Shape (runs, tasks).
        low: Lowest possible value.
        high: Highest possible value.
        truth: The true mean.
    """
    n = values.shape[1] + 2
    centre = (values.sum(axis=1) + low + high) / n
    squares = ((values - centre[:, None]) ** 2).sum(axis=1)
    squares += (low - centre) ** 2 + (high - centre) ** 2
    margin = t_quantile(0.975, n - 1) * np.sqrt(squares / (n - 1) / n)
    return np.abs(truth - centre) <= margin + 1e-12


def _coverage(draw: Callable[[int], Array], low: float, truth: float, runs: int) -> float:
    covered = 0
    for at in range(0, runs, _AT_ONCE):
        values = draw(min(_AT_ONCE, runs - at))
        covered += int(_covers(values, low, 1.0, truth).sum())
    return covered / runs


def coverage_of_mean(world: str, n: int, repeats: int, runs: int) -> float:
    """Return the share of runs whose interval of the mean holds the truth."""
    make, truth = MEAN_WORLDS[world]
    rng = np.random.default_rng([n, repeats, len(world)])
    return _coverage(lambda size: make(rng, (size, n), repeats), 0.0, truth, runs)


def coverage_of_gain(world: str, n: int, repeats: int, runs: int) -> float:
    """Return the share of runs whose interval of the gain holds the truth."""
    make, truth = GAIN_WORLDS[world]
    rng = np.random.default_rng([n, repeats, len(world)])

    def differences(size: int) -> Array:
        before, after = make(rng, (size, n), repeats)
        return after - before

    return _coverage(differences, -1.0, truth, runs)


@cache
def _intervals(n: int) -> list[tuple[float, float]]:
    found = (estimate_mean([1.0] * k + [0.0] * (n - k)) for k in range(n + 1))
    return [(one.low, one.high) for one in found]


def exact_coverage(n: int, p: float) -> float:
    """Return the probability that the interval of n binary rewards holds their chance ``p``."""
    return math.fsum(
        math.comb(n, k) * p**k * (1 - p) ** (n - k)
        for k, (low, high) in enumerate(_intervals(n))
        if low <= p <= high
    )


def test_coverage() -> None:
    for title, worlds, coverage in (
        ("mean", MEAN_WORLDS, coverage_of_mean),
        ("gain", GAIN_WORLDS, coverage_of_gain),
    ):
        print(f"\ncoverage of the interval of a {title}, {RUNS:,} runs a cell")
        print(f"{'world':24}" + "".join(f"{n:>8}" for n in TASKS))
        for world in worlds:
            cells = [min(coverage(world, n, k, RUNS) for k in REPEATS) for n in TASKS]
            print(f"{world:24}" + "".join(f"{cell:8.3f}" for cell in cells))
    least = min((exact_coverage(n, i / 200), n, i / 200) for n in TASKS for i in range(1, 200))
    print("least exact coverage of a share: {:.4f} at n={}, p={}".format(*least))
