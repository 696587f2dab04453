"""The power of a plan, by simulation, before it costs anything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from agl_promote.episodes import Episode
from agl_promote.evidence import Evidence, Pair
from agl_promote.plan import LivePlan, Plan

__all__ = ["GAINS", "power_of"]

GAINS: Final = (0.05, 0.1, 0.2)
"""Gains, as shares of the reward range, for which the power is printed."""
_RUNS: Final = 200
"""Simulated tests per gain: the power's standard error is at most 3.5 points."""
_MOST: Final = 60_000
"""Pairs or episodes that are simulated for one gain: about half a second."""


def power_of(
    plan: Plan | LivePlan,
    known: Sequence[float],
    gain: float,
    *,
    most: int | None = None,
    seed: int = 0,
) -> float:
    """Return the probability that a candidate with a true gain is promoted.

    Args:
        plan: The plan; guardrails are left out.
        known: Rewards of the champion, of which tasks are drawn. A reward between the ends of the
            range stands for the chance of the highest one. Without any, half of the tasks are easy
            and half are hard.
        gain: True gain, as a share of the reward range.
        most: Pairs that the budget suffices for; None for all.
        seed: Of the simulation.
    """
    chance = random.Random(seed)
    low, _ = plan.reward_range
    shares = [(reward - low) / plan.width for reward in known] or [0.1, 0.8]
    relative = {"reward_range": (0.0, 1.0), "min_gain": plan.min_gain / plan.width}
    simulated = plan.model_copy(update={**relative, "guardrails": [], "wanted_gain": None})
    draw: Any = (
        partial(_episode, chance, plan.share, gain)
        if isinstance(plan, LivePlan)
        else partial(_pair, chance, plan.repeats, gain)
    )
    count = plan.most if most is None else min(most, plan.most)
    runs = max(20, min(_RUNS, _MOST // plan.most))
    promoted = 0
    for _ in range(runs):
        evidence: Evidence[Any] = Evidence(simulated)
        for _ in range(count):
            if evidence.add(draw(chance.choice(shares))).kind != "undecided":
                break
        promoted += evidence.decision.kind == "promote"
    return promoted / runs


def _pair(chance: random.Random, repeats: int, gain: float, share: float) -> Pair:
    return Pair(_mean(chance, share, repeats), _mean(chance, min(1.0, share + gain), repeats))


def _episode(chance: random.Random, arm_share: float, gain: float, share: float) -> Episode:
    is_candidate = chance.random() < arm_share
    return Episode(is_candidate, _mean(chance, min(1.0, share + gain * is_candidate), 1))


def _mean(chance: random.Random, share: float, repeats: int) -> float:
    return sum(chance.random() < share for _ in range(repeats)) / repeats
