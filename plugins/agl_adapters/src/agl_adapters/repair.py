"""Finds which span encloses which in time, in one sweep over the sorted intervals.

Comparing each pair of spans takes a quarter of a second for a thousand spans, and hours for a
hundred thousand. Here the spans are visited by start time; a tree over the end times finds the
shortest visited span that ends no earlier in O(log n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agl_adapters.tree import TraceTree

_Entry = tuple[float, int, int]  # length, position in tree order, group
_NONE: Final[_Entry] = (float("inf"), -1, -1)


@dataclass(frozen=True, slots=True)
class Encloser:
    """An enclosing node, and the index of the top's child in whose subtree it is."""

    node: TraceTree
    group: int


def enclosing_nodes(children: Sequence[TraceTree]) -> list[Encloser | None]:
    """Return, for each child, the shortest node in its siblings' subtrees that encloses it.

    A node encloses a child if it starts no later, ends no earlier, and does not have the same
    times. Of equally long nodes the first in tree order is taken. Nodes that lack a time, or that
    end before they start, enclose no node and are enclosed by none.
    """
    nodes: list[TraceTree] = []
    timed: list[tuple[float, float, int, int]] = []  # start, -end, position, group
    queries: list[tuple[float, float, int]] = []  # start, -end, child
    for group, child in enumerate(children):
        for node in child.traverse():
            start, end = node.span.start_time, node.span.end_time
            if start is not None and end is not None and start <= end:
                timed.append((start, -end, len(nodes), group))
                if node is child:
                    queries.append((start, -end, group))
            nodes.append(node)
    timed.sort()
    queries.sort()
    ends = sorted({-end for _, end, _, _ in timed}, reverse=True)
    rank = {end: index for index, end in enumerate(ends, start=1)}
    shortest = _ShortestByEnd(len(ends))
    best: list[_Entry] = [_NONE] * len(children)
    seen = 0
    for start, end, child in queries:
        # Entries sorted before the child's own start earlier, or start with it and end later. So
        # all nodes that may enclose the child are inserted, and those with its times are not.
        while timed[seen] < (start, end):
            other_start, other_end, position, group = timed[seen]
            shortest.insert(rank[-other_end], (-other_end - other_start, position, group))
            seen += 1
        best[child] = shortest.among(rank[-end], child)
    return [Encloser(nodes[found[1]], found[2]) if found != _NONE else None for found in best]


class _ShortestByEnd:
    """Finds the shortest entry up to an end rank that is outside a given group.

    A Fenwick tree (P. Fenwick, 1994) of minima; rank 1 is the latest end. Each of its nodes keeps
    the two best entries of different groups, so that one remains when a group is excluded.
    """

    __slots__ = ("_first", "_second", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._first: list[_Entry] = [_NONE] * (size + 1)
        self._second: list[_Entry] = [_NONE] * (size + 1)

    def insert(self, rank: int, entry: _Entry) -> None:
        first, second = self._first, self._second
        while rank <= self._size:
            if entry < first[rank]:
                if first[rank][2] != entry[2]:
                    second[rank] = first[rank]
                first[rank] = entry
            elif entry[2] != first[rank][2] and entry < second[rank]:
                second[rank] = entry
            else:
                return  # the nodes further up cover more entries, so it is not among their best
            rank += rank & -rank

    def among(self, rank: int, outside: int) -> _Entry:
        """Return the best entry of rank ``rank`` or below whose group is not ``outside``."""
        first, second = self._first, self._second
        best = _NONE
        while rank:
            entry = first[rank]
            if entry < best:
                if entry[2] == outside:
                    entry = second[rank]
                if entry < best:
                    best = entry
            rank &= rank - 1
        return best
