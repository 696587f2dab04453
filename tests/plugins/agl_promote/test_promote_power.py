"""The power of a plan: the simulated candidate gains what was asked, under the whole plan."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

import agl_promote.power as power
from agl_promote import Episode, Evidence, LivePlan, Pair, Plan, power_of

TERMS: dict[str, Any] = {"name": "p", "champion": "a", "candidate": "b", "reward_range": (0, 1)}
ROLLOUTS = [0.0, 1.0, 1.0, 1.0, 1.0]
"""Rewards of single rollouts: a champion at 80 %."""


def pairs(count: int = 60, **options: Any) -> Plan:
    return Plan(**{**TERMS, "tasks": [str(index) for index in range(count)], **options})


def live(**options: Any) -> LivePlan:
    return LivePlan(**{**TERMS, "deadline": 60.0, "max_episodes": 1000, **options})


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that is simulated; nothing is decided before the end."""
    drawn: list[Any] = []

    class Recorded(Evidence[Any]):
        def add(self, sample: Any) -> Any:
            drawn.append(sample)
            return self.decision

    monkeypatch.setattr(power, "Evidence", Recorded)
    return drawn


@pytest.mark.parametrize(
    ("known", "gain", "expected"),
    [
        (ROLLOUTS, 0.2, 0.2),
        (ROLLOUTS, 0.05, 0.05),
        ([0.0, 0.5, 0.9, 1.0], 0.2, 0.2),
        ([0.2], 0.1, 0.1),
        ([0.9], 0.2, 0.1),  # more is not left to gain
        ([1.0], 0.2, 0.0),
        ([], 0.1, 0.1),
    ],
)
def test_the_mean_gain_of_the_pairs_is_the_one_that_is_asked_for(
    samples: list[Pair], known: list[float], gain: float, expected: float
):
    power_of(pairs(), known, gain)
    champion, candidate = (fmean(column) for column in list(zip(*samples, strict=True))[:2])
    tolerance = 4 * (2 * 0.25 / len(samples)) ** 0.5  # standard errors, at their largest
    assert candidate - champion == pytest.approx(expected, abs=tolerance)
    assert champion == pytest.approx(fmean(known or [0.1, 0.8]), abs=tolerance)


def test_the_mean_gain_of_the_episodes_is_the_one_that_is_asked_for(samples: list[Episode]):
    power_of(live(share=0.3, reward_range=(-1, 1)), [-1.0, 1.0, 1.0, 1.0, 1.0], 0.1)
    of_candidate = [one.reward for one in samples if one.is_candidate]
    of_champion = [one.reward for one in samples if not one.is_candidate]
    assert len(of_candidate) / len(samples) == pytest.approx(0.3, abs=0.01)
    tolerance = 4 * (0.25 / len(of_candidate) + 0.25 / len(of_champion)) ** 0.5
    assert fmean(of_candidate) - fmean(of_champion) == pytest.approx(0.1, abs=tolerance)


def test_a_champion_that_mostly_succeeds_leaves_a_plan_hope():
    assert power_of(pairs(), ROLLOUTS, 0.2) > 0.9


@pytest.mark.parametrize("plan", [pairs(100, test="anytime"), live(max_episodes=300)])
def test_a_plan_that_may_give_up_shows_less(plan: Plan | LivePlan):
    hasty = plan.model_copy(update={"wanted_gain": 0.6})
    wide = plan.model_copy(update={"wanted_gain": 6.0, "reward_range": (-5.0, 5.0)})
    shown = power_of(hasty, [0.5], 0.2)
    assert shown < power_of(plan, [0.5], 0.2) - 0.05
    assert shown == power_of(wide, [0.0], 0.2)


def test_a_budget_for_nothing_shows_nothing():
    assert power_of(pairs(), ROLLOUTS, 0.2, most=0) == 0.0
