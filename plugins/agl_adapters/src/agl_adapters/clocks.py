"""Moves spans of other machines, whose clocks differ, to the calls that caused them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.types import Span

if TYPE_CHECKING:
    from agl_adapters.tree import TraceTree


def is_remote(span: Span) -> bool:
    """Tell whether a span's parent was recorded by another process, such as a proxy's."""
    return span.parent is not None and span.parent.is_remote


def align_clocks(top: TraceTree) -> None:
    """Move remote children into the time of their parents, and what is below them likewise.

    A call takes at least as long as what it causes elsewhere. So a remote child that starts before
    its parent or ends after it has the time of another clock; it goes to the middle of its parent,
    as in Jaeger's adjustment of clock skew (https://github.com/jaegertracing/jaeger/issues/197).
    A child that took longer than its parent starts with it. Takes O(n).
    """
    moves = [(top, 0.0)]
    while moves:
        node, shift = moves.pop()
        span = node.span
        if shift:
            times = {"start_time": span.start_time, "end_time": span.end_time}
            update = {key: time + shift for key, time in times.items() if time is not None}
            node.span = span.model_copy(update=update)
        moves += [
            (child, _skew(node, child) if is_remote(child.span) else shift)
            for child in node.children
        ]


def _skew(parent: TraceTree, child: TraceTree) -> float:
    """Return the seconds by which a child of another machine has to move."""
    outer, inner = (parent.start_time, parent.end_time), (child.start_time, child.end_time)
    if outer[0] is None or outer[1] is None or inner[0] is None or inner[1] is None:
        return 0.0
    if outer[0] <= inner[0] and inner[1] <= outer[1]:
        return 0.0
    spare = (outer[1] - outer[0]) - (inner[1] - inner[0])
    return outer[0] + max(0.0, spare / 2) - inner[0]
