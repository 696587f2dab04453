r"""Group relative policy optimisation, from rewards and tokens to a step of the optimiser.

Read top to bottom: the formulas, then :func:`update`, which combines them. `rollouts.py` and
`samples.py` collect the rollouts; `policy.py` holds the model and `batches.py` its input.

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

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from agl_algo_grpo.batches import Row, collate, forward_passes
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.policy import Policy
from agl_core.algorithm import RewardScale

__all__ = [
    "group_advantages",
    "high_covariance",
    "kl_to_reference",
    "policy_loss",
    "row_weights",
    "sequence_log_ratio",
    "truncated_importance",
    "update",
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
        rewards: float ``[R]``; minus infinity for a failure, which counts as
            :class:`~agl_core.algorithm.RewardScale` says for its group.
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
        failed = r == -torch.inf
        if bool(failed.any()) and not bool(failed.all()):
            scale = RewardScale()
            scale.learn(r[~failed].tolist())
            r[failed] = scale.failure
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


# -- one step --------------------------------------------------------------------------------------


def update(policy: Policy, rows: Sequence[Row], config: GRPOConfig, step: int) -> dict[str, float]:
    """Train on the rollouts of one step.

    The log-probabilities that the server reported are the denominator of the ratio. Before the
    first update they are compared with the policy's own values for the same tokens. A difference
    means that server and trainer do not hold the same model.

    Args:
        policy: The policy to train, in place.
        rows: Rows of all rollouts.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
        step: Number of the step; with the seed it determines the minibatches.

    Returns:
        Metrics: ``logprob_delta`` (largest such difference), ``entropy``, ``staleness`` (mean of
        the rows), ``loss``, ``kl``, ``clipped`` (share of tokens), ``ratio_max``, ``grad_norm``,
        ``learning_rate``.
    """
    rows, metrics = _measured(policy, rows, config)
    sampled = sum(int(row.mask.sum()) for row in rows)
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    if config.kl:
        references = policy.reference_logprobs(rows)
        rows = [replace(row, reference=known) for row, known in zip(rows, references, strict=True)]
    if config.clip_cov:
        rows = _without_high_covariance(rows, config.clip_cov, generator)

    learning_rate = policy.set_learning_rate(step)
    totals = dict.fromkeys(("loss", "kl", "clipped", "grad_norm"), 0.0)
    ratio_max = 0.0
    updates = config.epochs * config.minibatches
    for part in _minibatches(rows, config, generator):
        members = [rows[i] for i in part]
        lengths = torch.tensor([int(row.mask.sum()) for row in members])
        numbers = torch.tensor([row.rollout for row in members])
        weights = row_weights(lengths, numbers, config.loss, config.loss_tokens)
        for bins in forward_passes(members, config.micro_batch_tokens, pack=config.pack):
            batch = collate(members, bins, weights, policy.device)
            # Other tokens have no part in the loss; their ratios might overflow.
            logprobs = policy.logprobs(batch)[batch.mask]
            token_weights = batch.weights[batch.mask]
            log_ratio = logprobs - batch.old_logprobs[batch.mask]
            if config.ratio == "sequence":
                log_ratio = sequence_log_ratio(log_ratio, batch.rows[batch.mask])
            losses = policy_loss(
                log_ratio,
                batch.advantages[batch.mask],
                config.clip_low,
                config.clip_high,
                config.clip_dual,
            )
            if batch.reference is not None:
                divergence = kl_to_reference(logprobs, batch.reference[batch.mask])
                losses = losses + config.kl * divergence
                totals["kl"] += float((divergence.detach() * token_weights).sum()) / updates
            loss = (losses * token_weights).sum()
            loss.backward()
            with torch.no_grad():
                ratio = log_ratio.exp()
                outside = (ratio < 1 - config.clip_low) | (ratio > 1 + config.clip_high)
                totals["loss"] += float(loss.detach()) / updates
                totals["clipped"] += float(outside.sum()) / sampled / config.epochs
                ratio_max = max(ratio_max, float(ratio.max()))
        totals["grad_norm"] += policy.step() / updates
    return metrics | totals | {"ratio_max": ratio_max, "learning_rate": learning_rate}


def _measured(
    policy: Policy, rows: Sequence[Row], config: GRPOConfig
) -> tuple[list[Row], dict[str, float]]:
    """Compare the rows with the policy's own values before its update.

    Returns:
        The rows, whose log-probabilities are the denominators of the ratios, and metrics.
    """
    own = policy.evaluate(rows)
    pairs = list(zip(rows, own, strict=True))
    sampled = sum(int(row.mask.sum()) for row in rows)
    metrics = {
        # Weights of an earlier step differ by its update.
        "logprob_delta": max(
            (
                float((known.raw - row.logprobs)[row.mask].abs().max())
                for row, known in pairs
                if not row.staleness
            ),
            default=float("nan"),
        ),
        "entropy": sum(float(known.entropy[row.mask].sum()) for row, known in pairs) / sampled,
        "staleness": sum(row.staleness for row in rows) / len(rows),
    }
    if config.overlap:
        rows = [
            replace(
                row,
                logprobs=known.raw * row.mask,
                advantages=row.advantages
                * truncated_importance(known.raw, row.logprobs, config.importance_cap),
            )
            for row, known in pairs
        ]
    elif config.temperature != 1:
        # Servers report log-probabilities at temperature 1, not at the rollouts' temperature.
        rows = [replace(row, logprobs=known.tempered * row.mask) for row, known in pairs]
    return list(rows), metrics


def _without_high_covariance(
    rows: Sequence[Row], share: float, generator: torch.Generator
) -> list[Row]:
    """Return the rows with advantage 0 for the tokens that :func:`high_covariance` chooses."""
    chosen = high_covariance(
        torch.cat([row.logprobs[row.mask] for row in rows]),
        torch.cat([row.advantages[row.mask] for row in rows]),
        share,
        generator,
    )
    parts = chosen.split([int(row.mask.sum()) for row in rows])
    changed: list[Row] = []
    for row, part in zip(rows, parts, strict=True):
        excluded = torch.zeros_like(row.mask).masked_scatter(row.mask, part)
        changed.append(replace(row, advantages=row.advantages.masked_fill(excluded, 0.0)))
    return changed


def _minibatches(
    rows: Sequence[Row], config: GRPOConfig, generator: torch.Generator
) -> Iterator[list[int]]:
    """Yield the indices of the rows of each update; the rows of a rollout stay together."""
    rollouts = sorted({row.rollout for row in rows})
    for _ in range(config.epochs):
        order = torch.randperm(len(rollouts), generator=generator).tolist()
        for number in range(config.minibatches):
            members = {rollouts[i] for i in order[number :: config.minibatches]}
            part = [i for i, row in enumerate(rows) if row.rollout in members]
            if part:
                yield part
