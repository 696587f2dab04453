"""Intervals of mean rewards and of gains. Every interval that agl prints is made here.

::

    print(estimate_mean([1.0, 1.0, 0.0, 1.0]))               # 0.750 [0.125, 1.000] (n=4)
    print(estimate_gain(before=[0, 0, 1], after=[1, 0, 1]))  # +0.333 [-0.839, +1.000] (n=3)

The unit is the task: several rollouts of one task say little more about tasks to come than one
does, so their mean is one value (:func:`means_by_task`).

Both intervals are Student's t intervals of the values and two more, one at each end of what is
possible. The two represent what a small sample has not shown: without them ten rewards of 1 have an
interval of width 0, and one won task among 24 ties "proves" a gain. They matter less the more tasks
there are. Adding pseudo-observations is the idea of Agresti and Coull ("Approximate is better than
'exact' for interval estimation of binomial proportions", The American Statistician 52, 1998); here
one success and one failure are added, and Student's quantile is used, for graded rewards, too.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from statistics import NormalDist, fmean
from typing import Final, NamedTuple, TypeVar

from agl_core.errors import InvalidArgumentError

__all__ = [
    "CONFIDENCE",
    "Estimate",
    "Gain",
    "estimate_gain",
    "estimate_mean",
    "means_by_task",
    "pass_at_k",
    "reward_ends",
    "t_quantile",
]

K = TypeVar("K", bound=Hashable)

CONFIDENCE: Final = 0.95
"""Confidence of every printed interval."""

_LONGEST_SERIES: Final = 1000
"""Degrees of freedom from which on an expansion replaces the exact series; at 1,000 its error is
below 1e-11."""


class Estimate(NamedTuple):
    """A mean over tasks and its confidence interval; ``n`` is the number of tasks."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.n})"

    def figures(self, name: str) -> dict[str, float]:
        """Return the mean under a name, and the rest beside it, as metrics of a step."""
        ends = {f"{name}_low": self.low, f"{name}_high": self.high}
        return {name: self.mean, **ends, f"{name}_tasks": self.n}


class Gain(Estimate):
    """A mean difference of paired tasks and its confidence interval."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}] (n={self.n})"

    @property
    def is_shown(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0


def estimate_mean(
    values: Sequence[float],
    confidence: float = CONFIDENCE,
    *,
    reward_range: tuple[float, float] | None = None,
) -> Estimate:
    """Estimate the mean reward over tasks like these.

    Args:
        values: One value per task; of several rollouts of a task their mean.
        confidence: Between 0 and 1, exclusive.
        reward_range: The lowest and the highest possible reward; see :func:`reward_ends`.

    Raises:
        InvalidArgumentError: There are no values, a value is outside the range, or the confidence
            is not between 0 and 1.
    """
    low, high = reward_ends(values, reward_range)
    return Estimate(*_interval(values, low, high, confidence), len(values))


def estimate_gain(
    before: Sequence[float],
    after: Sequence[float],
    confidence: float = CONFIDENCE,
    *,
    reward_range: tuple[float, float] | None = None,
) -> Gain:
    """Estimate the mean of ``after`` minus ``before`` over tasks like these.

    Args:
        before: One value per task.
        after: The values of the same tasks in the same order.
        confidence: Between 0 and 1, exclusive.
        reward_range: The lowest and the highest possible reward; see :func:`reward_ends`.

    Raises:
        InvalidArgumentError: The numbers of values differ, or as for :func:`estimate_mean`.
    """
    if len(before) != len(after):
        raise InvalidArgumentError(f"{len(before)} values before, {len(after)} after")
    low, high = reward_ends([*before, *after], reward_range)
    width = high - low
    differences = [new - old for old, new in zip(before, after, strict=True)]
    return Gain(*_interval(differences, -width, width, confidence), len(differences))


def reward_ends(
    values: Iterable[float], reward_range: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Return the lowest and the highest possible reward.

    Args:
        values: Rewards.
        reward_range: The declared range. Without one it is 0 to 1, widened to the rewards that are
            outside; an interval is then as good as the guess that no later reward is farther out.

    Raises:
        InvalidArgumentError: A reward is not a finite number or outside the declared range.
    """
    low, high = (0.0, 1.0) if reward_range is None else reward_range
    for value in values:
        if not math.isfinite(value):
            raise InvalidArgumentError(f"a reward must be finite, not {value}")
        if reward_range is not None and not low <= value <= high:
            raise InvalidArgumentError(
                f"the reward {value} is outside the declared range, {low:g} to {high:g}"
            )
        low, high = min(low, value), max(high, value)
    return low, high


def means_by_task(rewards: Iterable[tuple[K, float]]) -> dict[K, float]:
    """Return the mean reward of each task, in the order of first appearance.

    Args:
        rewards: A task's key and a reward, one pair per rollout.
    """
    found: dict[K, list[float]] = {}
    for task, reward in rewards:
        found.setdefault(task, []).append(reward)
    # Rounding puts the mean of equal values beside them, and so out of a declared range.
    return {
        task: min(max(fmean(values), min(values)), max(values)) for task, values in found.items()
    }


def pass_at_k(passed: int, attempts: int, k: int) -> float:
    """Estimate the chance that at least one of ``k`` attempts at a task passes, without bias.

    It is the share of the choices of ``k`` among the attempts that hold one that passed (Chen et
    al., "Evaluating large language models trained on code", 2021, https://arxiv.org/abs/2107.03374).

    Args:
        passed: Number of attempts that passed.
        attempts: Number of attempts.
        k: From 1 to ``attempts``.

    Raises:
        InvalidArgumentError: ``k`` or ``passed`` is not in its range.
    """
    if not 1 <= k <= attempts or not 0 <= passed <= attempts:
        raise InvalidArgumentError(f"no pass@{k} of {attempts} attempts, of which {passed} passed")
    # math.comb is exact, and 0 if fewer than k attempts failed.
    return 1 - math.comb(attempts - passed, k) / math.comb(attempts, k)


def _interval(
    values: Sequence[float], low: float, high: float, confidence: float
) -> tuple[float, float, float]:
    """Return the mean of the values, and the interval with both ends added to them."""
    if not values:
        raise InvalidArgumentError("a mean needs at least one value")
    if not 0 < confidence < 1:
        raise InvalidArgumentError(f"confidence must be between 0 and 1, not {confidence}")
    n = len(values) + 2
    centre = fmean(chain(values, (low, high)))
    squares = math.fsum((value - centre) ** 2 for value in chain(values, (low, high)))
    margin = t_quantile((1 + confidence) / 2, n - 1) * math.sqrt(squares / (n - 1) / n)
    mean = fmean(values)
    # At a low confidence the interval around the shifted centre could miss the mean itself.
    return mean, min(mean, max(low, centre - margin)), max(mean, min(high, centre + margin))


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: int) -> float:
    """Return the ``p`` quantile of Student's t distribution with ``df`` degrees of freedom.

    Raises:
        InvalidArgumentError: ``p`` is not between 0 and 1, or ``df`` is below 1.
    """
    if not 0 < p < 1 or df < 1:
        raise InvalidArgumentError(f"no quantile {p} of Student's t with {df} degrees of freedom")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    z = NormalDist().inv_cdf(p)
    if df > _LONGEST_SERIES:
        # Cornish-Fisher expansion: Abramowitz & Stegun 26.7.5.
        return (
            z
            + (z**3 + z) / (4 * df)
            + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
        )
    # Newton's method. The distribution function is concave above 0 and z is below the quantile, so
    # every step stays below it, and the last one changes nothing.
    t = z
    while True:
        above = t + (2 * p - 1 - _t_within(t, df)) / (2 * _t_density(t, df))
        if above <= t * (1 + 1e-15):
            return t
        t = above


def _t_within(t: float, df: int) -> float:
    """Return P(-t < T < t), exactly: Abramowitz & Stegun 26.7.3 and 26.7.4."""
    theta = math.atan(t / math.sqrt(df))
    cos2 = math.cos(theta) ** 2
    term = math.cos(theta) if df % 2 else 1.0
    total = 0.0
    for k in range(3 if df % 2 else 2, df + 1, 2):
        total += term
        term *= cos2 * (k - 1) / k
    if df % 2:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total


def _t_density(t: float, df: int) -> float:
    scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return math.exp(scale - (df + 1) / 2 * math.log1p(t * t / df))
