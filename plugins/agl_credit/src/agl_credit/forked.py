r"""Advantages in a tree of rollouts, whose branches repeat the turns before they fork.

The idea of VinePPO (Kazemnejad et al., 2024, https://arxiv.org/abs/2410.01679), between the turns
of agents: further continuations of a state estimate its value. As in Tree-GRPO (2025,
https://arxiv.org/abs/2509.21240), every branch is trained on, and repeated turns cost no tokens.

The forks cut each rollout into segments, the edges of a tree. All edges that leave a node are
samples of the same policy in the same state, so

.. math:: A(e) = V(e) - mean(V(e') \text{ of the other edges } e' \text{ of its node})

where V of an edge is the reward at its end, or the mean over the edges that leave its end. The
baseline does not depend on the edge's actions. An edge weighs as much as the edge that leads to its
node, divided by the number of edges that leave it. With these weights the sum over the tree has the
expectation of the sum over the roots alone: forks lower the variance and add no bias, provided that
no choice of a fork depended on what its parent sampled there or later; see
:func:`~agl_credit.choose_forks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agl_credit.paths import Floats, Path, deviation

__all__ = ["forked_advantages"]


@dataclass(slots=True)
class _Edge:
    """The turns ``[start, end)`` of a path, between two nodes."""

    path: int
    start: int
    end: int
    after: list[_Edge] = field(default_factory=list["_Edge"])
    value: float = 0.0
    advantage: float = 0.0
    weight: float = 1.0


def forked_advantages(
    group: Sequence[Path], *, normalise: bool = True, weighted: bool = True
) -> list[Floats]:
    """Return the advantages of a group with forks, times the weights of their edges.

    Without forks they are those of the leave-one-out baseline (RLOO).

    Args:
        group: Rollouts of one task, and their forks.
        normalise: Divide by the standard deviation of all rewards.
        weighted: Apply the weights; without them states that were forked count more.

    Returns:
        float64 ``[T]`` of each path; 0 for the turns that a fork repeats, and for rollouts that no
        other can be compared with.

    Raises:
        ValueError: A parent does not come before its fork, or has fewer turns than it repeats.
    """
    advantages = [np.zeros(len(path.turns)) for path in group]
    rewards = [path.reward for path in group]
    if len(set(rewards)) < 2:
        return advantages
    edges, roots = _edges(group)
    for edge in reversed(edges):  # an edge comes after the one that leads to it
        leaves = [later.value for later in edge.after]
        edge.value = float(np.mean(leaves)) if leaves else group[edge.path].reward
    _compare(roots, float(len(roots)))
    for edge in edges:
        _compare(edge.after, edge.weight)
    scale = deviation(rewards) if normalise else 1.0
    for edge in edges:
        weight = edge.weight if weighted else 1.0
        advantages[edge.path][edge.start : edge.end] = weight * edge.advantage / scale
    return advantages


def _compare(siblings: Sequence[_Edge], weight: float) -> None:
    """Set the advantages and weights of the edges that leave a node."""
    total = sum(edge.value for edge in siblings)
    for edge in siblings:
        edge.weight = weight / len(siblings)
        if len(siblings) > 1 and any(other.value != edge.value for other in siblings):
            edge.advantage = edge.value - (total - edge.value) / (len(siblings) - 1)


def _edges(group: Sequence[Path]) -> tuple[list[_Edge], list[_Edge]]:
    """Return all edges, each after the one that leads to it, and those that leave the root."""
    owners = [_owner(group, i) for i in range(len(group))]
    nodes: dict[tuple[int, int], list[_Edge]] = {owner: [] for owner in owners if owner}
    edges: list[_Edge] = []
    roots: list[_Edge] = []
    for i, path in enumerate(group):
        cuts = sorted(at for owner, at in nodes if owner == i)
        before = nodes.get(owners[i] or (-1, -1), roots)
        start = path.at if path.parent is not None else 0
        for end in (*cuts, len(path.turns)):
            edge = _Edge(i, start, end)
            before.append(edge)
            edges.append(edge)
            if end in cuts:
                edge.after = before = nodes[i, end]
            start = end
    return edges, roots


def _owner(group: Sequence[Path], i: int) -> tuple[int, int] | None:
    """Return the path that sampled the turn before a fork, and the turn; None for the root."""
    path = group[i]
    if path.parent is None:
        return None
    if not 0 <= path.parent < i or not 0 <= path.at < len(group[path.parent].turns):
        raise ValueError(f"path {i} cannot repeat {path.at} turns of path {path.parent}")
    owner, at = path.parent, path.at
    while at <= group[owner].at and (parent := group[owner].parent) is not None:
        owner = parent
    return (owner, at) if at else None
