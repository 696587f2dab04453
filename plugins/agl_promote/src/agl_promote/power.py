"""The power of a plan, by simulation, before it costs anything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from agl_promote.evidence import Evidence, Pair
from agl_promote.plan import Plan

__all__ = ["GAINS", "power_of"]

GAINS: Final = (0.05, 0.1, 0.2)
"""Gains, as shares of the reward range, for which the power is printed."""
_RUNS: Final = 200
_MOST_PAIRS: Final = 60_000
"""Pairs that are simulated for one gain: about half a second."""


def power_of(plan: Plan, known: Sequence[float], gain: float, seed: int = 0) -> float:
    """Return the probability that a candidate with a true gain is promoted.

    Args:
        plan: The plan; guardrails are left out.
        known: Rewards of the champion, of which tasks are drawn. A reward between the ends of the
            range stands for the chance of the highest one. Without any, half of the tasks are easy
            and half are hard.
        gain: True gain, as a share of the reward range.
        seed: Of the simulation.
    """
    chance = random.Random(seed)
    low, _ = plan.reward_range
    shares = [(reward - low) / plan.width for reward in known] or [0.1, 0.8]
    simulated = plan.model_copy(
        update={"reward_range": (0.0, 1.0), "guardrails": [], "segments": []}
    )
    simulated = simulated.model_copy(
        update={"min_gain": plan.min_gain / plan.width, "wanted_gain": None}
    )
    runs = max(20, min(_RUNS, _MOST_PAIRS // len(plan.tasks)))
    promoted = 0
    for _ in range(runs):
        evidence = Evidence(simulated)
        for _ in plan.tasks:
            share = chance.choice(shares)
            pair = Pair(
                _mean(chance, share, plan.repeats),
                _mean(chance, min(1.0, share + gain), plan.repeats),
            )
            if evidence.add(pair).kind != "undecided":
                break
        promoted += evidence.decision.kind == "promote"
    return promoted / runs


def _mean(chance: random.Random, share: float, repeats: int) -> float:
    return sum(chance.random() < share for _ in range(repeats)) / repeats
