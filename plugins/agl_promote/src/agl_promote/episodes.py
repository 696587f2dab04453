"""The same question for live traffic: episodes instead of tasks, one of the two for each.

An episode (a conversation, a ticket) is assigned by a hash of its id, so all its calls keep the
version, and champion and candidate run at the same time. There are no pairs: an episode with the
candidate (A = 1, with probability π) or the champion gives

    S = (A/π - (1 - A)/(1 - π)) (r - 1/2),

whose mean is the gain. It is scaled to [-1, 1] for the bettors of :mod:`agl_promote.betting`. With
shares of a half, a gain of 0.1 needs some 1,000 episodes, and 0.2 some 300.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import NamedTuple

from agl_core.errors import InvalidArgumentError
from agl_promote.betting import Wealth

__all__ = ["Episode", "Rollback", "assigned_to_candidate", "episode_evidence"]


class Episode(NamedTuple):
    """One episode of live traffic.

    Attributes:
        candidate: Whether it was assigned to the candidate.
        enrolled: When it began, in epoch seconds.
        reward: Its reward, as a share of the declared range; None if it has none yet.
    """

    candidate: bool
    enrolled: float
    reward: float | None


def assigned_to_candidate(seed: str, episode_id: str, share: float) -> bool:
    """Return whether an episode gets the candidate: a function of its id, the same everywhere.

    Args:
        seed: Name of the promotion, so that two promotions assign independently.
        episode_id: Id of the episode.
        share: Probability of the candidate.
    """
    digest = hashlib.blake2b(f"{seed}|{episode_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 < share


def episode_evidence(
    episodes: Iterable[Episode],
    *,
    share: float,
    alpha: float,
    now: float,
    deadline: float,
    min_gain: float = 0.0,
) -> tuple[int | None, int]:
    """Apply the anytime test to episodes in the order of their enrolment.

    The evidence ends at the first episode that is still open: a version whose failures take longer
    must not look better meanwhile. At the deadline an open episode counts as the lowest reward.

    Args:
        episodes: In the order of enrolment.
        share: Probability of the candidate that they were assigned with.
        alpha: Largest probability of promoting a candidate that is not better.
        now: Epoch seconds.
        deadline: Seconds after which an episode without a reward counts as the lowest reward.
        min_gain: Gain to exceed, as a share of the range.

    Returns:
        The number of episodes after which the candidate is shown to be better, or None, and the
        number that count so far.

    Raises:
        InvalidArgumentError: The share is not between 0 and 1, or a reward is not.
    """
    if not 0 < share < 1:
        raise InvalidArgumentError(f"the share must be between 0 and 1, not {share}")
    scale = 2 * min(share, 1 - share)
    wealth, goal, counted = Wealth(min_gain * scale), -math.log(alpha), 0
    for episode in episodes:
        reward = episode.reward
        if reward is None:
            if now < episode.enrolled + deadline:
                break
            reward = 0.0
        if not 0 <= reward <= 1:
            raise InvalidArgumentError(f"a reward must be a share of the range, not {reward}")
        weight = 1 / share if episode.candidate else -1 / (1 - share)
        wealth.bet(weight * (reward - 0.5) * scale)
        counted += 1
        if wealth.log >= goal:
            return counted, counted
    return None, counted


class Rollback:
    """Watches what is live after a promotion, by a holdback that stays on the old version.

    Args:
        holdback: Share of the episodes that stay on the old version.
        alpha: Largest probability of rolling back a version that is not worse, ever.
    """

    def __init__(self, holdback: float = 0.1, alpha: float = 0.05) -> None:
        if not 0 < holdback < 1:
            raise InvalidArgumentError(f"the holdback must be between 0 and 1, not {holdback}")
        self._holdback = holdback
        self._goal = -math.log(alpha)
        self._wealth = Wealth()
        self._scale = 2 * min(holdback, 1 - holdback)
        self.is_due = False
        """Whether the old version is shown to be better."""

    def add(self, is_old: bool, reward: float) -> bool:
        """Take the next episode in the order of enrolment; return whether to roll back.

        Args:
            is_old: Whether it stayed on the old version.
            reward: Its reward, as a share of the range.
        """
        weight = 1 / self._holdback if is_old else -1 / (1 - self._holdback)
        self._wealth.bet(weight * (reward - 0.5) * self._scale)
        self.is_due = self.is_due or self._wealth.log >= self._goal
        return self.is_due
