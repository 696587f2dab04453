"""Rows of one rollout that begin alike, as one tree whose common beginnings are computed once.

An agent that drops a model's reasoning from its history makes a new row with every turn. Each of
these begins with most of the row before it. A tree holds every token once, a branch after where it
leaves off: the branches of a token follow it without a gap, so a token sees exactly the tokens
before it whose subtree it is in. Positions are those of the separate rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["Tree", "divide", "merge", "unsupported_by"]

_WORTH: Final = 0.75
"""Share of the separate rows' tokens that a tree may have at most. A mask of its own keeps the
attention from its fastest kernels, and the tokens of all branches are compared."""


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
    rows: Sequence[Tensor], rollouts: Sequence[int], max_tokens: int
) -> tuple[list[int], list[list[int]]]:
    """Return which rows stay separate, and which are merged; all as indices.

    Args:
        rows: Token ids of each row.
        rollouts: The number of each row's rollout. Only rows of one rollout are merged.
        max_tokens: Limit of the tokens of a tree.
    """
    members: dict[int, list[int]] = {}
    for i, rollout in enumerate(rollouts):
        members.setdefault(rollout, []).append(i)
    separate: list[int] = []
    trees: list[list[int]] = []
    for of_rollout in members.values():
        # In this order a row shares with the one before it all that it shares with any before it.
        order = sorted(of_rollout, key=lambda i: rows[i].tolist())
        tree, size = [order[0]], len(rows[order[0]])
        for before, i in pairwise(order):
            added = len(rows[i]) - _common(rows[before], rows[i])
            if size + added > max_tokens:
                _choose(tree, size, rows, separate, trees)
                tree, size = [], 0
                added = len(rows[i])
            tree.append(i)
            size += added
        _choose(tree, size, rows, separate, trees)
    return sorted(separate), trees


def _choose(
    tree: list[int],
    size: int,
    rows: Sequence[Tensor],
    separate: list[int],
    trees: list[list[int]],
) -> None:
    """Keep a tree if it is worth its mask."""
    if len(tree) > 1 and size <= _WORTH * sum(len(rows[i]) for i in tree):
        trees.append(tree)
    else:
        separate += tree


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
