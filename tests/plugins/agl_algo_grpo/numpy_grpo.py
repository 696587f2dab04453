"""Reference implementation of GRPO in NumPy and plain loops, float64, after the papers."""

from __future__ import annotations

import numpy as np

__all__ = [
    "advantages",
    "covariances",
    "kl",
    "logprobs",
    "loss",
    "sequence_ratios",
    "token_losses",
]


def advantages(rewards: list[float], groups: list[int], how: str) -> list[float]:
    result = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        if len(set(members)) < 2:
            result.append(0.0)
        elif how == "rloo":
            others = list(members)
            others.remove(reward)
            result.append(reward - np.mean(others))
        elif how == "group-mean":
            result.append(reward - np.mean(members))
        else:
            result.append((reward - np.mean(members)) / (np.std(members, ddof=1) + 1e-6))
    return [float(value) for value in result]


def logprobs(logits: np.ndarray, tokens: list[int], temperature: float) -> list[float]:
    """Return the log-probabilities of one row; ``logits`` is [T, V], the first result 0."""
    found = [0.0]
    for t in range(1, len(tokens)):
        row = logits[t - 1].astype(np.float64) / temperature
        top = row.max()
        found.append(float(row[tokens[t]] - top - np.log(np.exp(row - top).sum())))
    return found


def token_losses(
    new: list[float],
    old: list[float],
    advantage: float,
    low: float,
    high: float,
    dual: float | None,
) -> list[float]:
    result = []
    for now, then in zip(new, old, strict=True):
        ratio = np.exp(now - then)
        gain = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
        if dual is not None and advantage < 0:
            gain = max(gain, dual * advantage)
        result.append(float(-gain))
    return result


def kl(new: list[float], reference: list[float]) -> list[float]:
    return [
        float(np.exp(there - now) - (there - now) - 1)
        for now, there in zip(new, reference, strict=True)
    ]


def loss(rows: list[tuple[list[float], list[int], int]], how: str, constant: int) -> float:
    """Return the loss of a batch.

    Args:
        rows: Per row: the loss of each token, the mask, and the number of its rollout.
        how: See ``GRPOConfig.loss``.
        constant: Divisor of ``how == "constant"``.
    """
    by_rollout: dict[int, list[float]] = {}
    for losses, mask, rollout in rows:
        kept = [value for value, m in zip(losses, mask, strict=True) if m]
        by_rollout.setdefault(rollout, []).extend(kept)
    if how == "token":
        return float(np.mean([value for values in by_rollout.values() for value in values]))
    if how == "rollout":
        return float(np.mean([np.mean(values) for values in by_rollout.values()]))
    return float(sum(sum(values) for values in by_rollout.values()) / len(by_rollout) / constant)


def sequence_ratios(log_ratio: list[float], rows: list[int]) -> list[float]:
    """Return GSPO's ratio of each token's row."""
    means = {
        row: np.mean([value for value, r in zip(log_ratio, rows, strict=True) if r == row])
        for row in rows
    }
    return [float(np.exp(means[row])) for row in rows]


def covariances(logprobs: list[float], advantages: list[float]) -> list[float]:
    """Return each token's part of the covariance of log-probability and advantage."""
    return [
        float((logprob - np.mean(logprobs)) * (advantage - np.mean(advantages)))
        for logprob, advantage in zip(logprobs, advantages, strict=True)
    ]
