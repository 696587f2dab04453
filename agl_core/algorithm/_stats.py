"""Confidence intervals for mean scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from agl_core.errors import InvalidArgumentError


class Estimate(NamedTuple):
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.n})"


def estimate_mean(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Estimate the mean that a sample comes from.

    If every value is 0 or 1 the interval is Wilson's score interval (Wilson 1927), which keeps its
    coverage even if all of a few tasks succeeded; otherwise it is Student's t interval.

    Args:
        values: Independent observations, say one reward per task. One value alone gives an
            unbounded interval (unless it is 0 or 1).
        confidence: Between 0 and 1, exclusive.

    Raises:
        InvalidArgumentError: No values, or the confidence is not between 0 and 1.
    """
    if not values:
        raise InvalidArgumentError("a mean needs at least one value")
    if not 0 < confidence < 1:
        raise InvalidArgumentError(f"confidence must be between 0 and 1, not {confidence}")
    n, mean = len(values), fmean(values)
    if not math.isfinite(mean):  # failures only, whose scale is not known
        return Estimate(mean, -math.inf, math.inf, n)
    if all(value in (0, 1) for value in values):
        return Estimate(mean, *_wilson(mean, n, confidence), n)
    if n == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    margin = _t_quantile((1 + confidence) / 2, n - 1) * stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - margin, mean + margin, n)


def _wilson(share: float, n: int, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    margin = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    # If all failed or all succeeded, one bound is exactly 0 or 1; float rounding would miss it.
    low = 0.0 if share == 0 else max(0.0, centre - margin)
    return low, 1.0 if share == 1 else min(1.0, centre + margin)


def _t_quantile(p: float, df: int) -> float:
    """Return the ``p`` quantile (``p`` > 0.5) of Student's t with ``df`` degrees of freedom."""
    z = NormalDist().inv_cdf(p)
    if df > 100:
        # Cornish-Fisher expansion, Abramowitz & Stegun 26.7.5; off by less than 1e-7 here.
        return (
            z
            + (z**3 + z) / (4 * df)
            + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
        )
    low, high = z, 2 * z + 1
    while _t_within(high, df) < 2 * p - 1:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, df) < 2 * p - 1 else (low, middle)
    return (low + high) / 2


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
