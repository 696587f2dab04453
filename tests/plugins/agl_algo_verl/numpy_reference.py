"""Reference implementations in NumPy, float64, after the papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""An array of float64."""


def grpo(rewards: Sequence[float], groups: Sequence[str], *, by_std: bool) -> Array:
    """Return (reward - group mean) / (sample deviation + 1e-6) (arXiv:2402.03300, 4.1.2)."""
    found = np.zeros(len(rewards))
    for group in set(groups):
        members = [place for place, name in enumerate(groups) if name == group]
        values = np.array([rewards[place] for place in members])
        if len(values) == 1:
            continue  # a single rollout has nothing to compare with
        centred = values - values.mean()
        found[members] = centred / (values.std(ddof=1) + 1e-6) if by_std else centred
    return found


def rloo(rewards: Sequence[float], groups: Sequence[str]) -> Array:
    """Return the reward minus the mean of the others in the group (arXiv:2402.14740, 2.3)."""
    found = np.zeros(len(rewards))
    for place, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        others = [
            other
            for j, (other, name) in enumerate(zip(rewards, groups, strict=True))
            if name == group and j != place
        ]
        found[place] = reward - np.mean(others) if others else 0.0
    return found


def gae(rewards: Array, values: Array, mask: Array, gamma: float, lam: float) -> Array:
    """Return generalised advantage estimates (arXiv:1506.02438, 16) without masked tokens."""
    found = np.zeros_like(rewards)
    for row in range(len(rewards)):
        places = np.flatnonzero(mask[row])
        following = 0.0
        for k in range(len(places) - 1, -1, -1):
            now = places[k]
            later = values[row, places[k + 1]] if k + 1 < len(places) else 0.0
            # The reward of a turn may be on an inserted token.
            delta = rewards[row, now] + gamma * later - values[row, now]
            following = delta + gamma * lam * following
            found[row, now] = following
    return found


def whiten(values: Array, mask: Array) -> Array:
    """Return values with mean 0 and sample variance 1 over the mask."""
    chosen = values[mask > 0]
    return (values - chosen.mean()) / np.sqrt(chosen.var(ddof=1) + 1e-8)


def ppo_token_losses(
    old: Array, new: Array, advantages: Array, *, low: float, high: float, dual: float
) -> Array:
    """Return the clipped loss (arXiv:1707.06347, 7) with dual clipping (arXiv:1912.09729, 5)."""
    ratio = np.exp(np.clip(new - old, -20.0, 20.0))
    objective = np.minimum(ratio * advantages, np.clip(ratio, 1.0 - low, 1.0 + high) * advantages)
    bounded = np.maximum(objective, dual * advantages)
    return -np.where(advantages < 0, bounded, objective)


def mean_over_tokens(losses: Array, mask: Array) -> float:
    return float((losses * mask).sum() / mask.sum())


def mean_over_rollouts(losses: Array, mask: Array, rollouts: Sequence[str]) -> float:
    """Return the mean over rollouts of the mean over a rollout's tokens in all its rows."""
    means = []
    for rollout in dict.fromkeys(rollouts):
        rows = [place for place, name in enumerate(rollouts) if name == rollout]
        tokens = mask[rows].sum()
        if tokens:
            means.append((losses[rows] * mask[rows]).sum() / tokens)
    return float(np.mean(means))


def kl_estimates(new: Array, reference: Array) -> dict[str, Array]:
    """Return k1, k2, k3 of KL(new || reference); see http://joschu.net/blog/kl-approx.html."""
    difference = reference - new
    return {
        "k1": -difference,
        "k2": difference**2 / 2,
        "k3": np.exp(difference) - 1 - difference,
    }
