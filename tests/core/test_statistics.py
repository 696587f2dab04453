"""Intervals: quantiles against other formulas, and coverage in simulated worlds."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean, stdev

import pytest
from hypothesis import given, strategies as st

from agl_core.errors import InvalidArgumentError
from agl_core.statistics import (
    Estimate,
    estimate_gain,
    estimate_mean,
    means_by_task,
    reward_ends,
    t_quantile,
)
from tests.benchmark.bench_intervals import (
    CELLS,
    GAIN_WORLDS,
    MEAN_WORLDS,
    coverage_of_gain,
    coverage_of_mean,
    exact_coverage,
)


def integrated(t: float, df: int) -> float:
    """P(T <= t) by Simpson's rule on the density, in the angle atan(t / sqrt(df))."""
    steps = 4000
    end = math.atan(t / math.sqrt(df))
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    total = 0.0
    for i in range(steps + 1):
        weight = 1 if i in (0, steps) else 4 if i % 2 else 2
        total += weight * math.cos(end * i / steps) ** (df - 1)
    return 0.5 + scale * total * end / steps / 3


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 9, 24, 25, 101, 299, 1000, 1001, 5000])
@pytest.mark.parametrize("p", [0.51, 0.75, 0.975, 0.995, 0.99974])
def test_quantiles_invert_the_integral_of_the_density(p: float, df: int) -> None:
    assert integrated(t_quantile(p, df), df) == pytest.approx(p, abs=1e-10)
    assert t_quantile(1 - p, df) == pytest.approx(-t_quantile(p, df), rel=1e-9)


# Printed in most textbooks.
@pytest.mark.parametrize(
    ("df", "quantile"), [(1, 12.7062), (2, 4.3027), (9, 2.2622), (30, 2.0423), (1000, 1.9623)]
)
def test_quantiles_are_those_of_printed_tables(df: int, quantile: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(quantile, abs=5e-5)


def test_the_quantile_of_many_degrees_is_normal() -> None:
    assert t_quantile(0.975, 10**9) == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-8)
    assert t_quantile(0.5, 7) == 0.0


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.975, 0)])
def test_there_is_no_such_quantile(p: float, df: int) -> None:
    with pytest.raises(InvalidArgumentError):
        t_quantile(p, df)


def by_hand(values: list[float]) -> tuple[float, float]:
    margin = t_quantile(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - margin, fmean(values) + margin


def test_a_mean_is_the_t_interval_with_both_ends_added() -> None:
    values = [0.2, 0.4, 0.5, 0.9, 0.3, 0.6]
    low, high = by_hand([*values, 0.0, 1.0])
    assert estimate_mean(values) == pytest.approx((fmean(values), low, high, 6))
    low, high = by_hand([*values, -1.0, 3.0])
    assert estimate_mean(values, reward_range=(-1, 3)) == pytest.approx(
        (fmean(values), low, high, 6)
    )


def test_a_gain_is_the_t_interval_of_differences_with_the_largest_two_added() -> None:
    before, after = [0.1, 0.2, 0.3, 0.4], [0.5, 0.3, 0.8, 0.4]
    low, high = by_hand([0.4, 0.1, 0.5, 0.0, -1.0, 1.0])
    assert estimate_gain(before, after) == pytest.approx((0.25, low, high, 4))
    wide = estimate_gain(before, after, reward_range=(-1, 1))
    assert (wide.low, wide.high) == pytest.approx(by_hand([0.4, 0.1, 0.5, 0.0, -2.0, 2.0]))


def test_nine_ones_and_almost_one_are_not_certain() -> None:
    assert estimate_mean([1.0] * 9 + [0.99]).low < 0.8
    assert estimate_mean([1.0] * 10).low < 0.8


def test_one_won_task_of_24_proves_no_gain() -> None:
    assert not estimate_gain([0.0] * 24, [1.0] + [0.0] * 23).is_shown
    assert not estimate_gain([0.5] * 24, [0.55] * 24).is_shown
    assert estimate_gain([0.0] * 24, [1.0] * 12 + [0.0] * 12).is_shown


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0.01, 0.999))
def test_the_interval_holds_the_mean_and_stays_in_the_range(values, confidence) -> None:
    mean, low, high, n = estimate_mean(values, confidence)
    assert 0 <= low <= mean <= high <= 1
    assert n == len(values)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.floats(0.1, 100))
def test_the_interval_of_a_gain_follows_the_scale(values, scale) -> None:
    zeros = [0.0] * len(values)
    plain = estimate_gain(zeros, values, reward_range=(-5, 5))
    scaled = estimate_gain(
        zeros, [value * scale for value in values], reward_range=(-5 * scale, 5 * scale)
    )
    assert scaled[:3] == pytest.approx([end * scale for end in plain[:3]], abs=1e-9)


def test_without_a_declared_range_the_rewards_widen_it() -> None:
    assert reward_ends([0.2, 0.4]) == (0.0, 1.0)
    assert reward_ends([-3.0, 0.4, 7.0]) == (-3.0, 7.0)
    assert reward_ends([], (-1, 2)) == (-1, 2)
    assert estimate_mean([-3.0, 0.4, 7.0]) == estimate_mean([-3.0, 0.4, 7.0], reward_range=(-3, 7))


@pytest.mark.parametrize("value", [1.5, math.nan, math.inf])
def test_a_reward_outside_the_range_is_refused(value: float) -> None:
    with pytest.raises(InvalidArgumentError):
        reward_ends([0.5, value], (0, 1))


def test_repeats_of_a_task_are_one_value() -> None:
    rewards = [("a", 1.0), ("b", 0.0), ("a", 0.0), ("a", 0.5)]
    assert means_by_task(rewards) == {"a": 0.5, "b": 0.0}


@pytest.mark.parametrize(("reward", "times"), [(-0.1, 3), (0.1, 6), (0.22, 5), (1.3, 13)])
def test_the_mean_of_equal_rewards_stays_in_the_range(reward: float, times: int) -> None:
    (mean,) = means_by_task([("a", reward)] * times).values()
    assert mean == reward  # a plain mean is beside it by a rounding
    assert estimate_mean([mean], reward_range=(min(reward, 0), max(reward, 1))).mean == reward


def test_text_form() -> None:
    assert str(estimate_mean([1.0, 1.0, 0.0, 1.0])) == "0.750 [0.125, 1.000] (n=4)"
    assert str(estimate_gain([0, 0, 1], [1, 0, 1])) == "+0.333 [-0.839, +1.000] (n=3)"
    assert Estimate(0.5, 0.25, 0.75, 4).figures("x") == {
        "x": 0.5,
        "x_low": 0.25,
        "x_high": 0.75,
        "x_tasks": 4,
    }


@pytest.mark.parametrize(("values", "confidence"), [([], 0.95), ([1.0], 0.0), ([1.0], 1.0)])
def test_bad_arguments(values: list[float], confidence: float) -> None:
    with pytest.raises(InvalidArgumentError):
        estimate_mean(values, confidence)


def test_unequal_numbers_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="2 values before, 1 after"):
        estimate_gain([0, 1], [1])


# -- coverage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [8, 9, 12, 24, 100])
def test_the_interval_of_a_share_covers_exactly(n: int) -> None:
    assert min(exact_coverage(n, i / 100) for i in range(1, 100)) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("n", [*range(8, 64), 80, 128, 200, 300])
def test_the_interval_of_a_share_covers_exactly_at_every_size(n: int) -> None:
    assert min(exact_coverage(n, i / 500) for i in range(1, 500)) >= 0.93


# Three standard errors of 1,000 runs at 93 %; the whole table has 20,000 runs.
SHORT = {"runs": 1000, "least": 0.93 - 0.024}
WHOLE = {"runs": 20_000, "least": 0.93}


@pytest.mark.parametrize("world", MEAN_WORLDS)
def test_the_interval_of_a_mean_covers(world: str) -> None:
    for n, repeats in ((8, 1), (24, 4), (100, 8)):
        assert coverage_of_mean(world, n, repeats, SHORT["runs"]) >= SHORT["least"]


@pytest.mark.slow
@pytest.mark.parametrize("world", MEAN_WORLDS)
def test_the_interval_of_a_mean_covers_in_every_cell(world: str) -> None:
    for n, repeats in CELLS:
        assert coverage_of_mean(world, n, repeats, WHOLE["runs"]) >= WHOLE["least"], (n, repeats)


@pytest.mark.parametrize("world", GAIN_WORLDS)
def test_the_interval_of_a_gain_covers(world: str) -> None:
    for n, repeats in ((8, 1), (24, 4), (100, 8)):
        assert coverage_of_gain(world, n, repeats, SHORT["runs"]) >= SHORT["least"]


@pytest.mark.slow
@pytest.mark.parametrize("world", GAIN_WORLDS)
def test_the_interval_of_a_gain_covers_in_every_cell(world: str) -> None:
    for n, repeats in CELLS:
        assert coverage_of_gain(world, n, repeats, WHOLE["runs"]) >= WHOLE["least"], (n, repeats)
