"""How much too high the validation score of a chosen prompt is.

Of many prompts that are equally good, the best on one list of tasks looks better than it is: it was
lucky on these tasks. The excess is estimated from the rewards alone: the tasks are split into two
halves, the best prompt on one half is chosen, and its score there is compared with its score on
the other half, which chose nothing. Half of the tasks make the excess larger by the square root
of 2.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final

__all__ = ["selection_excess"]

_SPLITS: Final = 100
"""Random halves of the tasks: the mean over them moves by less than a printed digit."""
_MOST_STEPS: Final = 1_000_000
"""Rewards that are looked at in all splits together: a second of Python."""


def selection_excess(rewards: Sequence[Mapping[int, float]], tasks: int) -> float:
    """Estimate by how much the score of the best candidate is too high.

    In simulated beam searches in which no candidate is better, it is right to a fifth.

    Args:
        rewards: Reward by task of each candidate; some may be measured on a part of the tasks.
        tasks: Number of tasks that the chosen candidate is measured on.

    Returns:
        0 if fewer than two candidates or tasks were measured.
    """
    whole = [one for one in rewards if len(one) >= tasks]
    part = [one for one in rewards if 0 < len(one) < tasks]
    excess = _excess(whole)
    if part:
        # Rounds choose on a part of the tasks; only that part of the final score is too high.
        share = median(map(len, part)) / tasks
        excess = math.hypot(excess, share * _excess([*whole, *part]))
    return excess


def _excess(rewards: Sequence[Mapping[int, float]]) -> float:
    rows = sorted({row for one in rewards for row in one})
    if len(rewards) < 2 or len(rows) < 2:
        return 0.0
    chance = random.Random(0)  # the same figure for the same rewards
    splits = max(10, min(_SPLITS, _MOST_STEPS // sum(map(len, rewards))))
    differences: list[float] = []
    for _ in range(splits):
        half = set(chance.sample(rows, len(rows) // 2))
        halves = [
            (fmean(own), fmean(others))
            for one in rewards
            if (own := [reward for row, reward in one.items() if row in half])
            and (others := [reward for row, reward in one.items() if row not in half])
        ]
        if halves:
            chosen, fresh = max(halves, key=lambda pair: pair[0])
            differences.append(chosen - fresh)
    return max(0.0, fmean(differences) / math.sqrt(2)) if differences else 0.0
