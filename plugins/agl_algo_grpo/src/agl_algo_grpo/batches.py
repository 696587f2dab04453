"""Rows of tokens and their layout in batches.

Shapes: N rows; B bins of at least one row each; T tokens, padded on the right; K sampled tokens of
all rows. A bin is one sequence of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from agl_algo_grpo.prefixes import Tree, divide, merge

__all__ = ["Batch", "Pass", "Row", "collate", "forward_passes", "plan"]


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

    @property
    def predicted(self) -> Tensor:
        """Which tokens are trained, bool ``[T]``: those that were sampled, without the first."""
        return self.mask & (torch.arange(len(self.mask)) > 0)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows in one tensor, padded on the right, and what is known of their K sampled tokens.

    A row's first token is not among these: nothing predicts it.

    Attributes:
        token_ids: int64 ``[B, T]``; padding is 0.
        positions: int64 ``[B, T]``, position of each token in its row; 0 on padding.
        lengths: int64 ``[B]``, tokens of each bin, on the CPU.
        packed: Whether a bin has several rows, one after another.
        until: int64 ``[B, T]``, end of each token's subtree, where bins are trees; else None.
        sources: int64 ``[K]``, for each sampled token the index in ``[B * T]`` of the token before
            it, whose hidden state predicts it.
        targets: int64 ``[K]``, ids of the sampled tokens.
        rows: int64 ``[K]``, index of each token's row.
        old_logprobs: float32 ``[K]``.
        advantages: float32 ``[K]``.
        weights: float32 ``[K]``, weight of each token in the loss.
        reference: float32 ``[K]``; None without a KL term.
        masks: Which tokens of each row are among the K, by the row's index and in their order.
    """

    token_ids: Tensor
    positions: Tensor
    lengths: Tensor
    packed: bool
    until: Tensor | None
    sources: Tensor
    targets: Tensor
    rows: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    reference: Tensor | None
    masks: Mapping[int, Tensor]

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The arguments of a model's forward pass.

        Transformers takes positions that restart for the borders of rows and masks the attention
        between them, if it gets no attention mask. Trees have a mask of their own, bool
        ``[B, 1, T, T]``, True where the token of the row sees that of the column.
        """
        if self.until is not None:
            order = torch.arange(self.token_ids.shape[1], device=self.token_ids.device)
            seen = (order <= order[:, None]) & (order[:, None] < self.until[:, None, :])
            return {
                "input_ids": self.token_ids,
                "position_ids": self.positions,
                "attention_mask": seen[:, None],
            }
        if self.packed:
            return {"input_ids": self.token_ids, "position_ids": self.positions}
        attention = torch.arange(self.token_ids.shape[1]) < self.lengths[:, None]
        return {
            "input_ids": self.token_ids,
            "attention_mask": attention.long().to(self.token_ids.device),
        }

    def split(self, values: Tensor) -> dict[int, Tensor]:
        """Return ``values [K]`` by row, ``[T]`` each on the CPU, 0 where the policy did not sample.

        The keys are the rows' indices.
        """
        counts = [int(mask.sum()) for mask in self.masks.values()]
        return {
            i: torch.zeros(len(mask), dtype=values.dtype).masked_scatter(mask, part)
            for (i, mask), part in zip(self.masks.items(), values.cpu().split(counts), strict=True)
        }


def collate(
    rows: Sequence[Row],
    bins: Sequence[Sequence[int]],
    weights: Tensor | None = None,
    device: torch.device | str = "cpu",
    *,
    shared: bool = False,
) -> Batch:
    """Return a batch of some rows.

    Args:
        rows: ``N`` rows.
        bins: Indices of the rows of each bin.
        weights: float32 ``[N]``; see :func:`~agl_algo_grpo.grpo.row_weights`. None: 1.
        device: Device of the batch.
        shared: Merge the rows of each bin to trees.
    """
    of_rows = torch.ones(len(rows)) if weights is None else weights
    members = [i for of_bin in bins for i in of_bin]
    masks = {i: rows[i].predicted for i in members}
    arrange = merge if shared else _in_turn
    trees = [arrange([rows[i].token_ids for i in of_bin]) for of_bin in bins]
    lengths = torch.tensor([len(tree.token_ids) for tree in trees])
    width = int(lengths.max())
    places = [place + number * width for number, tree in enumerate(trees) for place in tree.places]
    sources = [place[:-1][masks[i][1:]] for i, place in zip(members, places, strict=True)]

    def laid_out(sequences: Sequence[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True).to(device)

    until = None
    if shared:
        until = laid_out([tree.until for tree in trees])
        # Padding sees itself: a token that sees nothing has no attention at all.
        order = torch.arange(width, device=until.device)
        until = torch.where(until == 0, order + 1, until)

    def sampled(part: Callable[[int], Tensor]) -> Tensor:
        return torch.cat([part(i)[masks[i]] for i in members]).to(device)

    references = {i: known for i in members if (known := rows[i].reference) is not None}
    return Batch(
        token_ids=laid_out([tree.token_ids for tree in trees]),
        positions=laid_out([tree.positions for tree in trees]),
        lengths=lengths,
        packed=not shared and len(members) > len(bins),
        until=until,
        sources=torch.cat(sources).to(device),
        targets=sampled(lambda i: rows[i].token_ids),
        rows=sampled(lambda i: torch.full((len(masks[i]),), i)),
        old_logprobs=sampled(lambda i: rows[i].logprobs),
        advantages=sampled(lambda i: rows[i].advantages),
        weights=sampled(lambda i: of_rows[i].expand(len(masks[i]))),
        reference=sampled(references.__getitem__) if len(references) == len(members) else None,
        masks=masks,
    )


def _in_turn(rows: Sequence[Tensor]) -> Tree:
    """Return rows one after another, which share nothing."""
    ends = torch.tensor([len(row) for row in rows]).cumsum(0).tolist()
    places = [torch.arange(end - len(row), end) for row, end in zip(rows, ends, strict=True)]
    return Tree(
        token_ids=torch.cat(list(rows)),
        positions=torch.cat([torch.arange(len(row)) for row in rows]),
        until=torch.cat(
            [torch.full((len(row),), end) for row, end in zip(rows, ends, strict=True)]
        ),
        places=places,
    )


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass.

    Attributes:
        bins: Indices of the rows of each bin.
        tokens: Number of tokens, padding included.
        shared: Whether the rows of each bin are merged to trees.
    """

    bins: list[list[int]]
    tokens: int
    shared: bool = False


def plan(
    rows: Sequence[Row], max_tokens: int, *, pack: bool = False, balance: float | None = None
) -> list[Pass]:
    """Return the forward passes over all rows.

    Args:
        rows: All rows.
        max_tokens: Limit of tokens in one pass, padding included; a longer row goes alone.
        pack: See :func:`forward_passes`; for rows that are not merged.
        balance: Merge rows that have a common beginning where that costs less, see
            :func:`~agl_algo_grpo.prefixes.balance`; None: compute each by itself.
    """
    ids = [row.token_ids for row in rows]
    separate, trees = list(range(len(rows))), list[list[int]]()
    if balance is not None:
        separate, trees = divide(ids, max_tokens, balance)
    passes: list[Pass] = []
    for bins in forward_passes([rows[i] for i in separate], max_tokens, pack=pack):
        longest = max(sum(len(ids[separate[i]]) for i in of_bin) for of_bin in bins)
        chosen = [[separate[i] for i in of_bin] for of_bin in bins]
        passes.append(Pass(chosen, longest * len(bins)))
    sizes = [len(merge([ids[i] for i in tree]).token_ids) for tree in trees]
    for numbers in _filled(sizes, max_tokens):
        # A mask of its own keeps trees of one bin apart, so they take the place of padding.
        packed = _packed([sizes[number] for number in numbers])
        chosen = [[i for k in of_bin for i in trees[numbers[k]]] for of_bin in packed]
        longest = max(sizes[number] for number in numbers)
        passes.append(Pass(chosen, longest * len(chosen), shared=True))
    return passes


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
    bins = _packed(sizes) if pack and rows else [[i] for i in range(len(rows))]
    lengths = [sum(sizes[i] for i in members) for members in bins]
    for numbers in _filled(lengths, max_tokens):
        yield [bins[number] for number in numbers]


_ENOUGH: Final = 2048
"""Tokens with which a pass uses its device well; from there on, bins that differ get another."""
_ALIKE: Final = 1.2
"""Ratio of the longest to the shortest bin up to which a pass grows above these tokens."""


def _filled(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield the numbers of the bins of each forward pass, by their lengths."""
    chosen: list[int] = []
    tokens = 0  # without padding
    # Ascending: the next bin is the longest of the pass.
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[number]
        if chosen:
            differs = tokens >= _ENOUGH and length > _ALIKE * lengths[chosen[0]]
            if differs or (len(chosen) + 1) * length > max_tokens:
                yield chosen
                chosen, tokens = [], 0
        chosen.append(number)
        tokens += length
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
