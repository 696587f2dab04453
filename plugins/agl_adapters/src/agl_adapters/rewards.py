"""Assigns rewards to model calls."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

from agl_adapters.tree import TraceTree, by_start
from agl_core.adapter import AdapterReport, Reason
from agl_core.emitter import by_authority
from agl_core.types import RewardMatchPolicy


def match_rewards(
    tree: TraceTree,
    calls: Sequence[TraceTree],
    policy: RewardMatchPolicy,
    report: AdapterReport | None = None,
    *,
    replace: bool = False,
) -> dict[str, float]:
    """Assign each reward to at most one call, in O(n log n).

    A reward is assigned to the latest call that ended no later than the reward span started and
    that has no reward yet; a second reward after the same calls is therefore assigned to an earlier
    call, as in agent-lightning 0.3. With ``replace`` it replaces the first, as in
    :func:`~agl_core.emitter.find_final_reward`: an agent may emit a reward and return it, too.
    *Latest* means by start time over the whole trace (``first_occurrence``), or by position among
    the siblings of the reward span (``first_sibling``).

    Args:
        tree: The trace.
        calls: The nodes that may be rewarded.
        policy: Where a reward looks for its call.
        report: Where to count the rewards that are assigned to no call.
        replace: Let a further reward after the same call replace the first.

    Returns:
        Reward by the id of the call's node; calls without one are absent.
    """
    report = AdapterReport() if report is None else report
    candidates = {call.id for call in calls}
    nodes = list(tree.traverse())
    if policy is RewardMatchPolicy.FIRST_OCCURRENCE:
        families = [sorted(nodes, key=by_start)]  # stable: equal times stay in tree order
    else:
        families = [[tree], *(node.children for node in nodes if node.children)]
    rewarding: dict[str, TraceTree] = {}
    for family in families:
        _assign(family, candidates, rewarding, report, replace=replace)
    read = ((call, node.reward()) for call, node in rewarding.items())
    return {call: reward for call, reward in read if reward is not None}


def _assign(
    nodes: Sequence[TraceTree],
    candidates: Set[str],
    rewarding: dict[str, TraceTree],
    report: AdapterReport,
    *,
    replace: bool,
) -> None:
    """Visit nodes in order and assign each reward to the latest fitting call before it."""
    waiting = _Waiting(sum(node.id in candidates for node in nodes))
    for node in nodes:
        if node.id in candidates:
            waiting.add(node)
        reward, time = node.reward(), node.start_time
        if reward is None:
            continue
        if math.isnan(reward):
            report.leave_out("reward", Reason.NOT_A_NUMBER)
        elif time is None:
            report.leave_out("reward", Reason.NO_TIME)
        elif (call := waiting.find_latest(time, keep=replace)) is None:
            report.leave_out("reward", Reason.NO_CALL)
        elif call.id in rewarding:
            report.leave_out("reward", Reason.REPLACED)
            rewarding[call.id] = _that_counts(rewarding[call.id], node)
        else:
            rewarding[call.id] = node


def _that_counts(before: TraceTree, after: TraceTree) -> TraceTree:
    """Return the one of two rewards of a call that counts."""
    return after if next(by_authority([before.span, after.span])) is after.span else before


class _Waiting:
    """Calls that may get a reward, in order; finds the last that ended by a given time.

    It is a segment tree of minima over the end times. A backward scan over the calls would take
    quadratic time when many calls overlap.
    """

    __slots__ = ("_calls", "_ends", "_size")

    def __init__(self, capacity: int) -> None:
        self._size = 1
        while self._size < capacity:
            self._size *= 2
        self._ends = [float("inf")] * (2 * self._size)
        self._calls: list[TraceTree] = []

    def add(self, call: TraceTree) -> None:
        self._calls.append(call)
        end = float("inf") if call.end_time is None else call.end_time
        self._set(len(self._calls) - 1, end)

    def find_latest(self, time: float, *, keep: bool) -> TraceTree | None:
        """Return the last call that ended at ``time`` or before; None without one.

        Args:
            time: The time.
            keep: Let later searches find the call, too.
        """
        ends = self._ends
        if ends[1] > time:
            return None
        node = 1
        while node < self._size:
            node = 2 * node + 1 if ends[2 * node + 1] <= time else 2 * node
        index = node - self._size
        if not keep:
            self._set(index, float("inf"))
        return self._calls[index]

    def _set(self, index: int, end: float) -> None:
        ends = self._ends
        node = index + self._size
        ends[node] = end
        node >>= 1
        while node:
            ends[node] = min(ends[2 * node], ends[2 * node + 1])
            node >>= 1
