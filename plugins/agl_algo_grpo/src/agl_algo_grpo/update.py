"""One step of GRPO: the formulas of `grpo.py`, combined and applied to the policy.

`rollouts.py` and `samples.py` collect the rollouts; `policy.py` holds the model, `batches.py` its
input, `micro_batches.py` what fits the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from agl_algo_grpo.batches import Batch, Pass, Row, collate
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.grpo import (
    high_covariance,
    kl_to_reference,
    policy_loss,
    row_weights,
    sequence_log_ratio,
    truncated_importance,
)
from agl_algo_grpo.policy import Policy, RowLogprobs

__all__ = ["update"]


def update(policy: Policy, rows: Sequence[Row], config: GRPOConfig, step: int) -> dict[str, float]:
    """Train on the rollouts of one step.

    The log-probabilities that the server reported are compared with the policy's own values for the
    same tokens before its first update. A large difference means that server and trainer do not
    hold the same model. The policy's values come from the forward passes of the first update. Only
    if that sees a part of the rows are there passes before it.

    Args:
        policy: The policy to train, in place.
        rows: Rows of all rollouts.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
        step: Number of the step; with the seed it determines the minibatches.

    Returns:
        Metrics: ``logprob_delta``, ``logprob_delta_mean`` and ``logprob_delta_p99`` (largest, mean
        and 99th percentile of such differences), ``entropy``, ``staleness`` (mean of the rows),
        ``loss``, ``kl`` and ``grad_norm`` (means of the updates), ``refused_updates`` (not applied,
        since their gradients were not finite), ``clipped`` (share of tokens without a gradient
        because of their ratio), ``ratio_max``, ``learning_rate``, ``computed_tokens`` (of one pass
        over all rows, padding included).
    """
    served, rows = rows, list(rows)
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    denominators = _Denominators(config, half=policy.dtype != torch.float32)
    known: list[RowLogprobs] | None = None
    if config.minibatches > 1 or (config.clip_cov and denominators.are_own):
        known = policy.evaluate(rows)
        rows = denominators.of_rows(rows, known)
    if config.kl:
        references = policy.reference_logprobs(rows)
        rows = [replace(row, reference=one) for row, one in zip(rows, references, strict=True)]
    if config.clip_cov:
        rows = _without_high_covariance(rows, config.clip_cov, generator)

    learning_rate = policy.set_learning_rate(step)
    total = _Sums()
    norms: list[float] = []
    refused = 0
    for part in _minibatches(rows, config, generator):
        members = [rows[i] for i in part]
        if known is None:  # with one minibatch, part is all rows
            found = _add_gradients(policy, members, config, denominators)
            known = [found.known[i] for i in range(len(rows))]
            rows = denominators.of_rows(rows, known)
        else:
            found = _add_gradients(policy, members, config)
        norm = policy.step()
        if math.isfinite(norm):
            norms.append(norm)
        else:
            refused += 1
            found = replace(found, loss=0.0, kl=0.0)  # their sums would not be finite either
        total.add(found)
    assert known is not None
    sampled = sum(int(row.predicted.sum()) for row in rows)
    return _compared(served, known) | {
        "computed_tokens": total.tokens / config.epochs,
        "loss": total.loss / len(norms) if norms else math.nan,
        "kl": total.kl / len(norms) if norms else math.nan,
        "clipped": total.clipped / sampled / config.epochs,
        "grad_norm": sum(norms) / len(norms) if norms else math.nan,
        "refused_updates": refused,
        "ratio_max": total.ratio_max,
        "learning_rate": learning_rate,
    }


@dataclass(slots=True)
class _Sums:
    """Sums over the tokens of forward passes.

    Attributes:
        tokens: Tokens that were computed, padding included.
        known: The policy's values for each row, where they were measured.
    """

    tokens: int = 0
    loss: float = 0.0
    kl: float = 0.0
    clipped: int = 0
    ratio_max: float = 0.0
    known: dict[int, RowLogprobs] = field(default_factory=dict[int, RowLogprobs])

    def add(self, other: _Sums) -> None:
        self.tokens += other.tokens
        self.loss += other.loss
        self.kl += other.kl
        self.clipped += other.clipped
        self.ratio_max = max(self.ratio_max, other.ratio_max)


def _add_gradients(
    policy: Policy,
    rows: Sequence[Row],
    config: GRPOConfig,
    denominators: _Denominators | None = None,
) -> _Sums:
    """Set the gradients of the loss of some rows.

    Args:
        policy: The policy.
        rows: The rows of one update.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
        denominators: How to choose the ratios' denominators, if the rows hold the server's
            log-probabilities; the policy's own values are then measured in the same passes.
    """
    lengths = torch.tensor([int(row.predicted.sum()) for row in rows])
    numbers = torch.tensor([row.rollout for row in rows])
    weights = row_weights(lengths, numbers, config.loss, config.loss_tokens)

    def over(passes: list[Pass]) -> _Sums:
        policy.zero_grad()  # of a try that ran out of memory
        sums = _Sums()
        for one in passes:
            batch = collate(rows, one.bins, weights, policy.device, shared=one.shared)
            sums.tokens += one.tokens
            values = policy.values(batch, measure=denominators is not None)
            if denominators is not None:
                sums.known |= policy.by_row(batch, values)
                batch = denominators.of_batch(batch, values.raw, values.logprobs.detach())
            _loss(values.logprobs, batch, config, sums).backward()
        return sums

    return policy.micro_batches.run(rows, over)


def _loss(logprobs: Tensor, batch: Batch, config: GRPOConfig, sums: _Sums) -> Tensor:
    """Return the loss of a batch's tokens, and add to the sums.

    Args:
        logprobs: float32 ``[K]``, under the policy in training.
        batch: The batch.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
        sums: What is added to.
    """
    log_ratio = logprobs - batch.old_logprobs
    if config.ratio == "sequence":
        log_ratio = sequence_log_ratio(log_ratio, batch.rows)
    losses = policy_loss(
        log_ratio, batch.advantages, config.clip_low, config.clip_high, config.clip_dual
    )
    if batch.reference is not None:
        divergence = kl_to_reference(logprobs, batch.reference)
        losses = losses + config.kl * divergence
        sums.kl += float((divergence.detach() * batch.weights).sum())
    loss = (losses * batch.weights).sum()
    ratio = log_ratio.detach().exp()
    rises, falls = batch.advantages > 0, batch.advantages < 0
    clipped = (rises & (ratio > 1 + config.clip_high)) | (falls & (ratio < 1 - config.clip_low))
    if config.clip_dual is not None:
        clipped |= falls & (ratio > config.clip_dual)
    sums.loss += float(loss.detach())
    sums.clipped += int(clipped.sum())
    if len(ratio):  # rows of one token have nothing to train
        sums.ratio_max = max(sums.ratio_max, float(ratio.max()))
    return loss


class _Denominators:
    """The log-probabilities that the policy's are divided by, and the weights that go with them.

    * Sampled by the same model: what the server reported, of weight 1.
    * Sampled by older weights, or in bfloat16: the policy's own values before its update, weighted
      by truncated importance.
    * Sampled at another temperature: the policy's own values at that temperature, of weight 1,
      because servers report those at temperature 1.

    In bfloat16 trainer and server round differently, so that a ratio between the two would differ
    from 1, and be clipped, before any update (Yao et al., "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training", 2025).

    Args:
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
        half: Whether the computation is not in float32.
    """

    def __init__(self, config: GRPOConfig, *, half: bool) -> None:
        self._cap = config.importance_cap
        self._weighs = config.temperature == 1 and (bool(config.overlap) or half)
        self.are_own = self._weighs or config.temperature != 1
        """Whether the denominators are the policy's own values."""

    def of_batch(self, batch: Batch, raw: Tensor, tempered: Tensor) -> Batch:
        """Return the batch with its denominators, by the policy's values ``[K]``."""
        if not self.are_own:
            return batch
        advantages = batch.advantages
        if self._weighs:
            advantages = advantages * truncated_importance(raw, batch.old_logprobs, self._cap)
        return replace(batch, old_logprobs=tempered, advantages=advantages)

    def of_rows(self, rows: Sequence[Row], known: Sequence[RowLogprobs]) -> list[Row]:
        """Return the rows with their denominators."""
        if not self.are_own:
            return list(rows)
        changed: list[Row] = []
        for row, own in zip(rows, known, strict=True):
            advantages = row.advantages
            if self._weighs:
                advantages = advantages * truncated_importance(own.raw, row.logprobs, self._cap)
            changed.append(replace(row, logprobs=own.tempered, advantages=advantages))
        return changed


def _compared(rows: Sequence[Row], known: Sequence[RowLogprobs]) -> dict[str, float]:
    """Return how the server's log-probabilities differ from the policy's own, and its entropy."""
    pairs = list(zip(rows, known, strict=True))
    nothing = float("nan")
    # Weights of an earlier step differ by its update.
    differences = torch.cat(
        [
            torch.zeros(0),
            *((own.raw - r.logprobs)[r.predicted].abs() for r, own in pairs if not r.staleness),
        ]
    )
    entropies = torch.cat([own.entropy[row.predicted] for row, own in pairs])
    return {
        "logprob_delta": float(differences.max()) if len(differences) else nothing,
        "logprob_delta_mean": float(differences.mean()),
        "logprob_delta_p99": _percentile(differences, 0.99) if len(differences) else nothing,
        "entropy": float(entropies.mean()),
        "staleness": sum(row.staleness for row in rows) / len(rows),
    }


def _percentile(values: Tensor, share: float) -> float:
    """Return the smallest value that at least a share of all values do not exceed."""
    # torch.quantile takes no more than 2^24 values.
    return float(values.kthvalue(max(1, math.ceil(share * len(values)))).values)


def _without_high_covariance(
    rows: Sequence[Row], share: float, generator: torch.Generator
) -> list[Row]:
    """Return the rows with advantage 0 for the tokens that :func:`high_covariance` chooses."""
    chosen = high_covariance(
        torch.cat([row.logprobs[row.predicted] for row in rows]),
        torch.cat([row.advantages[row.predicted] for row in rows]),
        share,
        generator,
    )
    parts = chosen.split([int(row.predicted.sum()) for row in rows])
    changed: list[Row] = []
    for row, part in zip(rows, parts, strict=True):
        excluded = torch.zeros_like(row.mask).masked_scatter(row.predicted, part)
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
