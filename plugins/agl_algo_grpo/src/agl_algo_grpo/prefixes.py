"""Rows that begin alike, as one tree whose common beginnings are computed once.

The rollouts of a group begin with their task's prompt. An agent that drops a model's reasoning from
its history makes a new row with every turn, which begins with most of the row before it. A tree
holds every token once, a branch after where it leaves off: the branches of a token follow it
without a gap, so a token sees exactly the tokens before it whose subtree it is in. Positions are
those of the separate rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["Tree", "balance", "divide", "merge", "unsupported_by"]

_WORTH: Final = 0.75
"""Share of the separate rows' cost that a tree may have at most: a mask of its own keeps the
attention from its fastest kernels."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows in one sequence of T tokens.

    Attributes:
        token_ids: int64 ``[T]``.
        positions: int64 ``[T]``, position of each token in its rows.
        until: int64 ``[T]``, end of each token's subtree: those before it, and not before the
            token, see the token.
        places: For each row the places of its tokens in the tree.
    """

    token_ids: Tensor
    positions: Tensor
    until: Tensor
    places: list[Tensor]


def merge(rows: Sequence[Tensor]) -> Tree:
    """Return the tree of rows.

    Args:
        rows: Token ids of each row, in the order of :func:`divide`; other orders are right but
            share less.
    """
    token_ids: list[Tensor] = []
    positions: list[Tensor] = []
    places: list[Tensor] = []
    until = torch.empty(sum(map(len, rows)), dtype=torch.long)
    path, size = torch.empty(0, dtype=torch.long), 0
    before = torch.empty(0, dtype=torch.long)
    for row in rows:
        common = _common(before, row)
        until[path[common:]] = size  # these branches end here
        added = len(row) - common
        token_ids.append(row[common:])
        positions.append(torch.arange(common, len(row)))
        path = torch.cat([path[:common], torch.arange(size, size + added)])
        places.append(path)
        before, size = row, size + added
    until[path] = size
    return Tree(torch.cat(token_ids), torch.cat(positions), until[:size], places)


def divide(
    rows: Sequence[Tensor], max_tokens: int, balance: float
) -> tuple[list[int], list[list[int]]]:
    """Return which rows stay separate, and which are merged; all as indices.

    The division costs least of all that keep the order of sorted rows. In a tree the attention
    compares each token with all others, also with those of other branches, whatever its mask says;
    in a separate row with the tokens before it. So long answers of a group become several trees.

    Args:
        rows: Token ids of each row.
        max_tokens: Limit of the tokens of a tree.
        balance: See :func:`balance`.
    """
    # In this order a row shares with the one before it all that it shares with any before it.
    order = sorted(range(len(rows)), key=lambda i: rows[i].tolist())
    sizes = [len(rows[i]) for i in order]
    shared = [0, *(_common(rows[i], rows[k]) for i, k in pairwise(order))]
    least = [0.0]  # cost of the first n rows
    begins: list[int] = []  # where the last tree of the first n rows begins
    for end, size in enumerate(sizes):
        cost, begin = least[end] + size * (balance + size / 2), end
        for first in range(end, 0, -1):
            added, common = sizes[first - 1], shared[first]
            # Two trees cost less than one, also of more rows: the attention between their parts
            # costs more than is shared.
            if 2 * added * size + common**2 >= common * (balance + 2 * (added + size)):
                break
            size += added - common
            if size > max_tokens:
                break
            of_tree = least[first - 1] + size * (balance + size) / _WORTH
            if of_tree < cost:
                cost, begin = of_tree, first - 1
        least.append(cost)
        begins.append(begin)
    trees: list[list[int]] = []
    end = len(order)
    while end:
        trees.append(order[begins[end - 1] : end])
        end = begins[end - 1]
    separate = sorted(tree[0] for tree in trees if len(tree) == 1)
    return separate, [tree for tree in reversed(trees) if len(tree) > 1]


def balance(model: Any) -> float:
    """Return how many tokens a token must see for the attention to cost what the matrices cost.

    A token takes 2 operations per weight of the layers, and in each layer 4 per unit of the heads
    for each token that it is compared with: ``weights / (2 * layers * heads * units)``. Measured
    for models of 10M and 100M parameters, trees of 2 to 8 rows and prompts of 64 to 1,024 tokens,
    forward and backward on a CPU: what follows from it is within 8 % of the time, but for long
    answers, whose trees were up to 15 % faster. A mixture of experts uses a part of its weights for
    a token, so its trees are larger than they should be.

    Args:
        model: A causal language model of Transformers, or PEFT's wrapper of one.
    """
    config = model.config.get_text_config()
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    outside = {id(p) for end in ends if end is not None for p in end.parameters()}
    weights = sum(p.numel() for p in model.parameters() if id(p) not in outside)
    units = getattr(config, "head_dim", None)
    width = config.num_attention_heads * units if units else config.hidden_size
    return weights / (2 * config.num_hidden_layers * width)


def _common(left: Tensor, right: Tensor) -> int:
    """Return the length of the common beginning."""
    size = min(len(left), len(right))
    different = (left[:size] != right[:size]).nonzero()
    return int(different[0]) if len(different) else size


def unsupported_by(model: Any, longest: int) -> str:
    """Return why a model cannot compute a tree; empty if nothing is known that speaks against it.

    Args:
        model: A causal language model of Transformers.
        longest: Tokens of the longest possible row.
    """
    config = model.config.get_text_config()
    attention = str(getattr(config, "_attn_implementation", None))
    if attention not in ("eager", "sdpa"):
        return f"the attention {attention} takes no mask"
    if getattr(model, "_is_stateful", False):
        return "the model has layers with a state"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    others = kinds - {"full_attention", "sliding_attention"}
    if others:
        return f"the model has layers of the type {', '.join(sorted(others))}"
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    if window is not None and window < longest:
        return f"the attention's window of {window} tokens is shorter than max_row_tokens"
    return ""
