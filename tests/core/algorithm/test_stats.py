"""Confidence intervals against published quantiles and against simulation."""

from __future__ import annotations

import math
import random

import pytest

from agl_core.algorithm._stats import estimate_mean
from agl_core.errors import InvalidArgumentError


# Quantiles of Student's t at 0.975, from printed tables.
@pytest.mark.parametrize(
    ("n", "quantile"),
    [
        (2, 12.7062),
        (3, 4.3027),
        (4, 3.1824),
        (5, 2.7764),
        (10, 2.2622),
        (31, 2.0423),
        (101, 1.9840),
        (102, 1.9837),
        (1001, 1.9623),
    ],
)
def test_student_interval(n: int, quantile: float) -> None:
    values = [0.5 + (i % 2) for i in range(n)]
    mean = sum(values) / n
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    estimate = estimate_mean(values)
    assert estimate.mean == pytest.approx(mean)
    assert estimate.high - mean == pytest.approx(quantile * spread / math.sqrt(n), rel=1e-4)
    assert mean - estimate.low == pytest.approx(estimate.high - mean)
    assert estimate.n == n


def test_other_confidence() -> None:
    narrow, wide = (estimate_mean([1.0, 2.0, 4.0], c) for c in (0.5, 0.99))
    assert narrow.high - narrow.mean == pytest.approx(0.8165 * math.sqrt(7 / 9), rel=1e-3)
    assert wide.high - wide.mean == pytest.approx(9.9248 * math.sqrt(7 / 9), rel=1e-3)


# Wilson's score interval; 10/10 and 0/10 are printed in many texts.
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(10, 10, 0.7225, 1.0), (0, 10, 0.0, 0.2775), (1, 1, 0.2065, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_shares_get_wilsons_interval(successes: int, n: int, low: float, high: float) -> None:
    estimate = estimate_mean([1.0] * successes + [0.0] * (n - successes))
    assert estimate.low == pytest.approx(low, abs=2e-4)
    assert estimate.high == pytest.approx(high, abs=2e-4)


def test_the_interval_covers_the_true_mean_at_its_confidence() -> None:
    rng = random.Random(7)
    covered = 0
    for _ in range(1000):
        estimate = estimate_mean([rng.gauss(3, 1) for _ in range(6)])
        covered += estimate.low <= 3 <= estimate.high
    assert 930 <= covered <= 970  # 95 % plus or minus three standard errors


def test_one_value_has_an_unbounded_interval() -> None:
    assert estimate_mean([0.3]) == (0.3, -math.inf, math.inf, 1)


def test_text_form() -> None:
    assert str(estimate_mean([1.0, 1.0, 0.0, 1.0])) == "0.750 [0.301, 0.954] (n=4)"


@pytest.mark.parametrize(("values", "confidence"), [([], 0.95), ([1.0], 0.0), ([1.0], 1.0)])
def test_bad_arguments(values: list[float], confidence: float) -> None:
    with pytest.raises(InvalidArgumentError):
        estimate_mean(values, confidence)


@pytest.mark.parametrize("n", [1, 7, 48, 1000])
def test_the_interval_ends_at_1_if_all_succeeded(n):
    assert estimate_mean([1] * n).high == 1.0
    assert estimate_mean([0] * n).low == 0.0
