"""One step of GRPO: the formulas of `grpo.py`, combined and applied to the policy.

`rollouts.py` and `samples.py` collect the rollouts; `policy.py` holds the model and `batches.py`
its input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from agl_algo_grpo.batches import Row, collate, forward_passes
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.grpo import (
    high_covariance,
    kl_to_reference,
    policy_loss,
    row_weights,
    sequence_log_ratio,
    truncated_importance,
)
from agl_algo_grpo.policy import Policy

__all__ = ["update"]


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
