r"""The formulas of group relative policy optimisation, as pure functions.

`update.py` combines them to a step of the optimiser.

For each task the policy makes a group of G rollouts with rewards r. A rollout's advantage is its
reward relative to its group (Shao et al., "DeepSeekMath", 2024, https://arxiv.org/abs/2402.03300):

.. math:: A_i = (r_i - mean(r)) / std(r)

Training makes every token that the policy sampled in rollout i likelier if A_i > 0 and less likely
if A_i < 0, within the clipped ratio (Schulman et al., "Proximal Policy Optimization", 2017):

.. math:: L = -\sum_t w_t \min(\rho_t A, clip(\rho_t, 1 - low, 1 + high) A) + \beta KL_t

where :math:`\rho_t` is the token's probability now divided by the probability that it was sampled
with, and the weights w add up to one. Tokens that the model did not sample (prompts, tool results)
are masked.

Shapes: R rollouts; N rows, at least one per rollout (an agent's trajectory may break into several);
K sampled tokens of all rows. All floats are float32.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "group_advantages",
    "high_covariance",
    "kl_to_reference",
    "policy_loss",
    "row_weights",
    "sequence_log_ratio",
    "truncated_importance",
]


def group_advantages(
    rewards: Tensor,
    groups: Tensor,
    how: Literal["group", "group-mean", "rloo"] = "group",
    epsilon: float = 1e-6,
) -> Tensor:
    """Return the advantage of each rollout within its group.

    A group whose rewards are all equal carries no signal: its advantages are 0.

    Args:
        rewards: float ``[R]``, finite: failures already count what
            :class:`~agl_core.algorithm.RewardScale` says for their group.
        groups: int ``[R]``, the number of each rollout's group.
        how: ``group``: ``(r - mean) / (std + epsilon)`` with the sample's standard deviation
            (n - 1). ``group-mean``: ``r - mean``, which does not favour tasks that are nearly
            always or nearly never solved (Liu et al., "Dr. GRPO", 2025). ``rloo``: ``r`` minus the
            mean of the others (Ahmadian et al., "Back to Basics", 2024).
        epsilon: Keeps the division finite.

    Returns:
        float ``[R]``.
    """
    advantages = torch.zeros_like(rewards)
    for group in groups.unique():
        members = groups == group
        r = rewards[members].double()
        n = len(r)
        if bool((r == r[0]).all()):
            continue  # otherwise rounding errors would be divided by epsilon
        centred = r - r.mean()
        if how == "group":
            centred = centred / (r.std(correction=1) + epsilon)
        elif how == "rloo":
            centred = centred * n / (n - 1)  # = r - (sum(r) - r) / (n - 1)
        advantages[members] = centred.to(rewards.dtype)
    return advantages


def row_weights(
    lengths: Tensor,
    rollouts: Tensor,
    how: Literal["token", "rollout", "constant"] = "token",
    constant: int = 1024,
) -> Tensor:
    """Return the weight in the loss of each row's sampled tokens.

    Args:
        lengths: int ``[N]``, number of sampled tokens of each row.
        rollouts: int ``[N]``, the number of each row's rollout.
        how: ``token``: all tokens weigh the same (Yu et al., "DAPO", 2025). ``rollout``: all
            rollouts weigh the same, whatever their length and number of rows (the original GRPO).
            ``constant``: a token weighs 1 / (rollouts * constant), which favours no length
            (Dr. GRPO).
        constant: See ``how``.

    Returns:
        float32 ``[N]``. Over all tokens the weights add up to 1, except with ``constant``.
    """
    lengths = lengths.float()
    numbers, index = rollouts.unique(return_inverse=True)
    if how == "token":
        return torch.ones_like(lengths) / lengths.sum()
    if how == "constant":
        return torch.ones_like(lengths) / (len(numbers) * constant)
    totals = torch.zeros(len(numbers), device=lengths.device).index_add(0, index, lengths)
    return 1 / (totals[index] * len(numbers))


def sequence_log_ratio(log_ratio: Tensor, rows: Tensor) -> Tensor:
    """Return the log-ratio of each token's row in place of the token's own.

    The mean over the row's tokens, as in GSPO (Zheng et al., "Group Sequence Policy Optimization",
    2025, https://arxiv.org/abs/2507.18071, equations 7 and 14). Clipping then keeps or drops whole
    rows. The gradient passes through each token's own log-probability (equation 14, "GSPO-token"),
    so tokens of a row may have different advantages.

    Args:
        log_ratio: float ``[K]``, log-ratio of each sampled token.
        rows: int ``[K]``, index of each token's row.

    Returns:
        float ``[K]``.
    """
    _, index, counts = rows.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), dtype=log_ratio.dtype, device=log_ratio.device)
    means = sums.index_add(0, index, log_ratio.detach()) / counts
    return means[index] + log_ratio - log_ratio.detach()


def policy_loss(
    log_ratio: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float | None = None,
) -> Tensor:
    """Return the clipped loss of each token.

    Args:
        log_ratio: float ``[K]``, log-probability of each sampled token under the policy in training
            minus the one that it was sampled with.
        advantages: float ``[K]``.
        clip_low: Lower bound of the ratio: ``1 - clip_low``.
        clip_high: Upper bound of the ratio: ``1 + clip_high``; may be larger than ``clip_low``
            (DAPO's "clip higher").
        clip_dual: Bound of the loss of tokens with negative advantage, whose ratio is otherwise
            unbounded (Ye et al., "Mastering Complex Control in MOBA Games", 2020).

    Returns:
        float ``[K]``.
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-ratio * advantages, -clipped * advantages)
    if clip_dual is not None:
        bounded = torch.minimum(loss, -clip_dual * advantages)
        loss = torch.where(advantages < 0, bounded, loss)
    return loss


def high_covariance(
    logprobs: Tensor,
    advantages: Tensor,
    share: float,
    generator: torch.Generator,
    low: float = 1.0,
    high: float = 5.0,
) -> Tensor:
    """Choose tokens whose update would lower the policy's entropy most.

    Clip-Cov of Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language
    Models", 2025 (https://arxiv.org/abs/2505.22617, equations 10 and 11): of the tokens whose
    covariance ``(logprob - mean) * (advantage - mean)`` lies between two bounds, a few at random
    get no gradient.

    Args:
        logprobs: float ``[K]``, log-probability of each sampled token.
        advantages: float ``[K]``.
        share: Number of chosen tokens as a share of all tokens.
        generator: Source of the choice.
        low: Lower bound of the covariance.
        high: Upper bound of the covariance.

    Returns:
        bool ``[K]``, True for at most ``share * K`` chosen tokens.
    """
    covariance = (logprobs - logprobs.mean()) * (advantages - advantages.mean())
    candidates = ((covariance >= low) & (covariance <= high)).nonzero()[:, 0]
    order = torch.randperm(len(candidates), generator=generator)
    chosen = torch.zeros_like(logprobs, dtype=torch.bool)
    chosen[candidates[order[: int(share * len(logprobs))]]] = True
    return chosen


def truncated_importance(logprobs: Tensor, old_logprobs: Tensor, cap: float) -> Tensor:
    """Return the weight of tokens that an older policy sampled.

    The probability under the policy before this update divided by the one that the token was
    sampled with, at most ``cap``; an unbounded weight would have an unbounded variance. The clipped
    ratio then starts from the policy before this update, as in the decoupled objective of Fu et
    al., "AReaL", 2025 (https://arxiv.org/abs/2505.24298, equation 5). The bound is that of Espeholt
    et al., "IMPALA", 2018 (https://arxiv.org/abs/1802.01561).

    Args:
        logprobs: float ``[T]``, log-probabilities under the policy before this update.
        old_logprobs: float ``[T]``, log-probabilities that the tokens were sampled with.
        cap: Largest weight.
    """
    return (logprobs - old_logprobs).exp().clamp(max=cap)


def kl_to_reference(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return an estimate of the KL divergence from a reference at each token; never negative.

    The estimator k3 of Schulman, "Approximating KL Divergence", 2020
    (http://joschu.net/blog/kl-approx.html), which GRPO uses.

    Args:
        logprobs: float ``[K]``, log-probabilities of sampled tokens under the policy.
        reference: float ``[K]``, log-probabilities of the same tokens under the reference.
    """
    difference = reference - logprobs
    return difference.exp() - difference - 1
