"""Rows of tokens, their layout in batches, and the log-probabilities of their tokens.

Shapes: N rows; B bins of at least one row each; T tokens, padded on the right; V words in the
vocabulary. A bin is one sequence of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Batch", "Row", "collate", "forward_passes", "token_logprobs"]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of tokens to train on.

    Attributes:
        token_ids: int64 ``[T]``.
        mask: bool ``[T]``, True where the policy sampled the token.
        logprobs: float32 ``[T]``, log-probability that a token was sampled with; 0 elsewhere.
        advantages: float32 ``[T]``, advantage of each token.
        rollout: Number of the row's rollout in the batch.
        staleness: How many updates older than the policy the weights are that sampled the row.
        reference: float32 ``[T]``, log-probabilities under the reference; None without a KL term.
    """

    token_ids: Tensor
    mask: Tensor
    logprobs: Tensor
    advantages: Tensor
    rollout: int
    staleness: int = 0
    reference: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows in one tensor, padded on the right.

    Attributes:
        token_ids: int64 ``[B, T]``; padding is 0.
        positions: int64 ``[B, T]``, position of each token in its row; 0 on padding.
        rows: int64 ``[B, T]``, index of each token's row; 0 on padding.
        mask: bool ``[B, T]``, False on padding and on tokens that the policy did not sample.
        old_logprobs: float32 ``[B, T]``.
        advantages: float32 ``[B, T]``.
        weights: float32 ``[B, T]``, weight of each token in the loss.
        reference: float32 ``[B, T]``; None without a KL term.
        packed: Whether a bin has several rows.
        places: Bin, start and end of each row, by the row's index.
    """

    token_ids: Tensor
    positions: Tensor
    rows: Tensor
    mask: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    reference: Tensor | None
    packed: bool
    places: Mapping[int, tuple[int, int, int]]

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The arguments of a model's forward pass.

        Transformers takes positions that restart for the borders of rows and masks the attention
        between them, if it gets no attention mask.
        """
        if self.packed:
            return {"input_ids": self.token_ids, "position_ids": self.positions}
        lengths = torch.tensor([end for _, _, end in self.places.values()])
        attention = torch.arange(self.token_ids.shape[1]) < lengths[:, None]
        return {
            "input_ids": self.token_ids,
            "attention_mask": attention.long().to(self.token_ids.device),
        }

    def split(self, values: Tensor) -> dict[int, Tensor]:
        """Return each row's part of ``values [B, T]``, on the CPU, by the row's index."""
        values = values.cpu()
        return {i: values[bin_, start:end] for i, (bin_, start, end) in self.places.items()}


def collate(
    rows: Sequence[Row],
    bins: Sequence[Sequence[int]],
    weights: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Batch:
    """Return a batch of some rows.

    Args:
        rows: ``N`` rows.
        bins: Indices of the rows of each bin.
        weights: float32 ``[N]``; see :func:`~agl_algo_grpo.grpo.row_weights`. None: 1.
        device: Device of the batch.
    """
    of_rows = torch.ones(len(rows)) if weights is None else weights
    sizes = {i: len(rows[i].token_ids) for members in bins for i in members}

    def laid_out(part: Callable[[int], Tensor]) -> Tensor:
        sequences = [torch.cat([part(i) for i in members]) for members in bins]
        return torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True).to(device)

    places: dict[int, tuple[int, int, int]] = {}
    for number, members in enumerate(bins):
        start = 0
        for i in members:
            places[i] = number, start, start + sizes[i]
            start += sizes[i]
    references = {i: known for i in sizes if (known := rows[i].reference) is not None}
    return Batch(
        token_ids=laid_out(lambda i: rows[i].token_ids),
        positions=laid_out(lambda i: torch.arange(sizes[i])),
        rows=laid_out(lambda i: torch.full((sizes[i],), i)),
        mask=laid_out(lambda i: rows[i].mask),
        old_logprobs=laid_out(lambda i: rows[i].logprobs),
        advantages=laid_out(lambda i: rows[i].advantages),
        weights=laid_out(lambda i: of_rows[i].expand(sizes[i])),
        reference=laid_out(references.__getitem__) if len(references) == len(sizes) else None,
        packed=len(sizes) > len(bins),
        places=places,
    )


def forward_passes(
    rows: Sequence[Row], max_tokens: int, *, pack: bool = False
) -> Iterator[list[list[int]]]:
    """Yield the bins of each forward pass, as indices of rows; bins of similar length go together.

    Args:
        rows: All rows.
        max_tokens: Limit of tokens in one pass, padding included; a longer bin goes alone.
        pack: Fill each bin with rows up to the length of the longest row, by first-fit decreasing.
            Without it each row has a bin of its own.
    """
    sizes = [len(row.token_ids) for row in rows]
    bins = _packed(sizes) if pack else [[i] for i in range(len(rows))]

    def length(members: Sequence[int]) -> int:
        return sum(sizes[i] for i in members)

    chosen: list[list[int]] = []
    for members in sorted(bins, key=length):  # ascending: the next bin is the longest of the pass
        if chosen and (len(chosen) + 1) * length(members) > max_tokens:
            yield chosen
            chosen = []
        chosen.append(members)
    if chosen:
        yield chosen


def _packed(sizes: Sequence[int]) -> list[list[int]]:
    """Pack rows into bins of the longest row's length; no row is split."""
    capacity = max(sizes)
    bins: list[list[int]] = []
    free: list[int] = []
    for i in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        fitting = next((number for number, room in enumerate(free) if room >= sizes[i]), None)
        if fitting is None:
            bins.append([i])
            free.append(capacity - sizes[i])
        else:
            bins[fitting].append(i)
            free[fitting] -= sizes[i]
    return bins


def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-probability of each token, given those before it.

    Args:
        logits: ``[B, T, V]``.
        token_ids: int64 ``[B, T]``.
        temperature: Temperature of the distribution that was sampled from.

    Returns:
        float32 ``[B, T]``; the first of each bin is 0, because nothing predicts it. The value of
        the first token of a later row of a bin has no meaning: nothing predicts that token either.
    """
    scaled = logits[:, :-1].float() / temperature
    chosen = scaled.gather(-1, token_ids[:, 1:, None])[..., 0] - scaled.logsumexp(-1)
    return torch.nn.functional.pad(chosen, (1, 0))
