"""Evidence from live traffic: episodes instead of tasks, one of the two for each.

An episode (a conversation, a ticket) is assigned by a hash of its id, so all its calls keep the
version, and champion and candidate run at the same time. There are no pairs: an episode with the
candidate (A = 1, with probability π) or the champion gives

    S = (A/π - (1 - A)/(1 - π)) (r - 1/2),

whose mean is the gain. It is scaled to [-1, 1] for the bettors of :mod:`agl_promote.betting`. With
shares of a half, a gain of 0.1 needs some 1,000 episodes, and 0.2 some 300.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from agl_promote.plan import LivePlan

__all__ = ["Episode", "assigned_to_candidate"]


class Episode(NamedTuple):
    """One episode of live traffic that has ended.

    Attributes:
        is_candidate: Whether it was assigned to the candidate.
        reward: Its reward; the lowest of the declared range for a failure.
        guarded: The rewards that the guardrails look at, by segment or name of the reward.
    """

    is_candidate: bool
    reward: float
    guarded: Mapping[str, float] = {}

    def differences(self, plan: LivePlan) -> tuple[float, Mapping[str, float]]:
        """See :class:`~agl_promote.evidence.Sample`."""
        guarded = {key: self._sample(plan, reward) for key, reward in self.guarded.items()}
        return self._sample(plan, self.reward), guarded

    def _sample(self, plan: LivePlan, reward: float) -> float:
        weight = 1 / plan.share if self.is_candidate else -1 / (1 - plan.share)
        sample = weight * ((reward - plan.reward_range[0]) / plan.width - 0.5) * plan.scale
        return max(-1.0, min(1.0, sample))  # it can only be outside by rounding


def assigned_to_candidate(seed: str, episode_id: str, share: float) -> bool:
    """Return whether an episode gets the candidate: a function of its id, the same everywhere.

    Args:
        seed: Id of the promotion, unique in its store: two promotions assign independently.
        episode_id: Id of the episode.
        share: Probability of the candidate.
    """
    digest = hashlib.blake2b(f"{seed}|{episode_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 < share
