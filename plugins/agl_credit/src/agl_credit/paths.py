"""A group of rollouts as the estimators see it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Path", "Turn", "deviation"]

Floats = NDArray[np.float64]
EPSILON: Final = 1e-6
"""Keeps divisions by a standard deviation finite."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call of a rollout.

    Attributes:
        state: The model's input. Turns of equal states are samples of one distribution.
        action: The model's answer.
        agent: Name of the agent that made the call.
        reward: Reward given for this turn; 0 if the only reward is the rollout's.
        surprisal: Negative log-probability of the action, in nats. Its expectation is the entropy
            of the turn.
        tokens: Number of tokens of the action.
    """

    state: Hashable
    action: Hashable
    agent: str = "*"
    reward: float = 0.0
    surprisal: float = 0.0
    tokens: int = 1


@dataclass(frozen=True, slots=True)
class Path:
    """One rollout of a group.

    Attributes:
        reward: Reward of the rollout.
        turns: Its T turns, in order, with the repeated ones of a fork.
        rewards: Rewards of single agents, by name.
        parent: Index in the group of the path that this one is a fork of; None for a root. A parent
            comes before its forks.
        at: Number of turns that a fork repeats. They were sampled by its parent.
    """

    reward: float
    turns: Sequence[Turn]
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    parent: int | None = None
    at: int = 0


def deviation(values: Sequence[float] | NDArray[Any]) -> float:
    """Return the sample's standard deviation (n - 1), plus a constant that keeps it positive."""
    return float(np.std(values, ddof=1)) + EPSILON
