"""The scale of rewards: what a failed rollout counts, and which reward cannot be exceeded.

Whoever averages, compares or trains on rewards asks here, so that all of them agree: a failed
rollout ranks below every finished one, whatever the scale. A fixed 0 would be the best reward of
an agent whose rewards are costs, and a search would choose the prompt that crashes it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from agl_core.errors import ConfigError
from agl_core.types import RolloutStatus

logger = logging.getLogger(__name__)

_USUAL_TARGET: Final = 1.0
"""Highest reward of a scale that nobody declared, until a higher one is seen: most are 0 to 1."""


class RewardRange(NamedTuple):
    """Lowest and highest possible reward."""

    low: float
    high: float

    @classmethod
    def of(cls, value: object, *, path: str = "reward_range") -> RewardRange | None:
        """Return a range that a user declared; None if there is none.

        Raises:
            ConfigError: It is not a pair of finite numbers, the lower first.
        """
        if value is None:
            return None
        try:
            low, high = (float(end) for end in value)  # pyright: ignore
        except (TypeError, ValueError):
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(
                "must be the lowest and the highest possible reward, such as (0, 1), not "
                f"{value!r}",
                path=path,
            )
        return cls(low, high)


def earned_reward(status: RolloutStatus, reward: float | None) -> float | None:
    """Return the reward of a rollout that finished; None for a failure.

    A rollout that failed or was cancelled is a failure even if it has a reward: the agent emitted
    it before it crashed. So is one without a reward, or with one that is not a finite number.

    Args:
        status: Final status of the rollout.
        reward: Its reward, if it has one.
    """
    if status != "succeeded" or reward is None or not math.isfinite(reward):
        return None
    return reward


@dataclass
class RewardScale:
    """A scale of rewards, declared by the user or learned from the rewards that were seen.

    Attributes:
        declared: Lowest and highest possible reward; None if they are not known.
        lowest: The lowest reward seen.
        highest: The highest reward seen.
    """

    declared: RewardRange | None = None
    lowest: float = field(default=math.inf, init=False)
    highest: float = field(default=-math.inf, init=False)
    _told: bool = field(default=False, init=False, repr=False, compare=False)

    def learn(self, rewards: Iterable[float | None]) -> None:
        """Take note of rewards; None stands for a failure."""
        for reward in rewards:
            if reward is not None:
                self.lowest = min(self.lowest, reward)
                self.highest = max(self.highest, reward)
        known = self.declared
        outside = known and (self.lowest < known.low or self.highest > known.high)
        if known and outside and not self._told:
            self._told = True
            logger.warning(
                "There are rewards from %g to %g, outside the declared reward_range (%g, %g)",
                self.lowest,
                self.highest,
                *known,
            )

    @property
    def failure(self) -> float:
        """What a failed rollout counts.

        The lower end of the declared range. If none is declared, as far below the lowest reward
        seen as the highest one is above it, so that a failure is last, and the ranking stays the
        same if all rewards are shifted or scaled. If all rewards are equal, 1 below them; if there
        are none, minus infinity.
        """
        if self.declared is not None:
            return min(self.declared.low, self.lowest)
        if self.lowest > self.highest:
            return -math.inf
        return self.lowest - (self.highest - self.lowest or 1.0)

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest possible reward, for means and intervals that people read.

        The declared range, else 0 to 1, widened to the rewards seen. A failure counts the lower
        end in them: what :attr:`failure` says serves to rank, and is no possible reward.
        """
        low, high = self.declared or (0.0, 1.0)
        return min(low, self.lowest), max(high, self.highest)

    @property
    def target(self) -> float | None:
        """The reward that cannot be exceeded; None if it is not known.

        The upper end of the declared range, else 1, unless a higher reward was seen.
        """
        target = _USUAL_TARGET if self.declared is None else self.declared.high
        return None if self.highest > target else target

    def counted(self, rewards: Iterable[float | None]) -> list[float]:
        """Return rewards with failures, which are None, as what they count."""
        failure = self.failure
        return [failure if reward is None else reward for reward in rewards]


def comparable(*lists: Sequence[float | None]) -> list[list[float]]:
    """Return lists of rewards on one scale, to compare their means; None stands for a failure."""
    scale = RewardScale()
    for rewards in lists:
        scale.learn(rewards)
    if not math.isfinite(scale.failure):  # failures only, which are equal
        return [[0.0] * len(rewards) for rewards in lists]
    return [scale.counted(rewards) for rewards in lists]
