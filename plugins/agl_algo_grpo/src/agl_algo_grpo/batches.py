"""Rows of tokens, padded batches of them, and the log-probabilities of their tokens.

Shapes: N rows; T tokens, padded on the right; V words in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Batch", "Row", "micro_batches", "pad_rows", "token_logprobs"]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of tokens to train on.

    Attributes:
        token_ids: int64 ``[T]``.
        mask: bool ``[T]``, True where the policy sampled the token.
        logprobs: float32 ``[T]``, log-probability that a token was sampled with; 0 elsewhere.
        advantage: Advantage of the row's rollout.
        rollout: Number of the row's rollout in the batch.
    """

    token_ids: Tensor
    mask: Tensor
    logprobs: Tensor
    advantage: float
    rollout: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows in one tensor, padded on the right.

    Attributes:
        token_ids: int64 ``[N, T]``; padding is 0.
        attention: int64 ``[N, T]``, 0 on padding.
        mask: bool ``[N, T]``, False on padding and on tokens that the policy did not sample.
        old_logprobs: float32 ``[N, T]``.
        advantages: float32 ``[N, 1]``.
        weights: float32 ``[N, 1]``, weight of each sampled token in the loss.
    """

    token_ids: Tensor
    attention: Tensor
    mask: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor


def pad_rows(rows: Sequence[Row], weights: Tensor, device: torch.device | str = "cpu") -> Batch:
    """Return a batch of rows.

    Args:
        rows: ``N`` rows.
        weights: float32 ``[N]``; see :func:`~agl_algo_grpo.grpo.row_weights`.
        device: Device of the batch.
    """

    def padded(parts: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).to(device)

    return Batch(
        token_ids=padded([row.token_ids for row in rows]),
        attention=padded([torch.ones_like(row.token_ids) for row in rows]),
        mask=padded([row.mask for row in rows]),
        old_logprobs=padded([row.logprobs for row in rows]),
        advantages=torch.tensor([[row.advantage] for row in rows], device=device),
        weights=weights[:, None].to(device),
    )


def micro_batches(rows: Sequence[Row], max_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of rows for each forward pass; rows of similar length go together.

    Args:
        rows: All rows.
        max_tokens: Limit of tokens in one pass, padding included; a longer row goes alone.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].token_ids))
    chosen: list[int] = []
    for i in order:  # ascending, so the next row is the longest of the pass
        if chosen and (len(chosen) + 1) * len(rows[i].token_ids) > max_tokens:
            yield chosen
            chosen = []
        chosen.append(i)
    if chosen:
        yield chosen


def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-probability of each token, given those before it.

    Args:
        logits: ``[N, T, V]``.
        token_ids: int64 ``[N, T]``.
        temperature: Temperature of the distribution that was sampled from.

    Returns:
        float32 ``[N, T]``; the first of each row is 0, because nothing predicts it.
    """
    scaled = logits[:, :-1].float() / temperature
    chosen = scaled.gather(-1, token_ids[:, 1:, None])[..., 0] - scaled.logsumexp(-1)
    return torch.nn.functional.pad(chosen, (1, 0))
