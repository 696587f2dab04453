"""The anytime test: a bettor against "the candidate is not better" who may stop at any time.

A bettor starts with 1 and bets on each difference D in [-1, 1] in turn. If the mean of D, given
the past, is at most m, no strategy gains in expectation, so the wealth ever reaches 1/alpha with a
probability of at most alpha (Ville 1939). So the wealth may be looked at after every pair, and the
test may stop whenever it is large. Five bettors stake fixed shares; their mean wealth needs no
tuning, does not depend on the order of the pairs, and five sums are its whole state.

Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024
(https://arxiv.org/abs/2010.09686); the mixture is Robbins's (1970).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from agl_core.errors import InvalidArgumentError

__all__ = ["STAKES", "Wealth", "gain_at_least"]

STAKES: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Shares of the wealth that are staked on each difference."""

_STEPS: Final = 60
"""Halvings of [-1, 1], to the last bit of a float."""


class Wealth:
    """The mean wealth of five bettors against "the mean difference is at most ``null``".

    Args:
        null: Between -1 and 1, exclusive.
    """

    def __init__(self, null: float = 0.0) -> None:
        if not -1 < null < 1:
            raise InvalidArgumentError(f"the null must be between -1 and 1, not {null}")
        self._null = null
        self._logs = [0.0] * len(STAKES)

    def bet(self, difference: float) -> None:
        """Bet on the next difference.

        Raises:
            InvalidArgumentError: It is not in [-1, 1]; clipping it would be a bias.
        """
        if not -1 <= difference <= 1:
            raise InvalidArgumentError(f"a difference must be in [-1, 1], not {difference}")
        won = (difference - self._null) / (1 + self._null)
        for index, stake in enumerate(STAKES):
            self._logs[index] += math.log1p(stake * won)

    @property
    def log(self) -> float:
        """Natural logarithm of the mean wealth, which itself may be too large for a float."""
        return _log_mean(self._logs)


def gain_at_least(differences: Sequence[float], alpha: float) -> float:
    """Return a bound that the mean difference is above, at any time, with confidence 1 - alpha.

    The wealth falls in the null, so the bound is the largest null that the bettors refute.
    """
    goal = -math.log(alpha)
    counts = Counter(differences)  # few, where rewards are 0 or 1
    low, high = -1.0, 1.0
    for _ in range(_STEPS):
        null = (low + high) / 2
        if _log_wealth(counts, null) >= goal:
            low = null
        else:
            high = null
    return low


def _log_wealth(counts: Mapping[float, int], null: float) -> float:
    """Return the log of the mean wealth; exact sums, so the order of the pairs changes no bit."""
    if null <= -1:
        return math.inf
    won = [((difference - null) / (1 + null), count) for difference, count in counts.items()]
    return _log_mean(
        [math.fsum(count * math.log1p(stake * each) for each, count in won) for stake in STAKES]
    )


def _log_mean(logs: Sequence[float]) -> float:
    top = max(logs)
    return top + math.log(math.fsum(math.exp(log - top) for log in logs) / len(logs))
