"""Compares the matching of rewards with a slow independent version on random traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agl_adapters.rewards import match_rewards
from agl_adapters.tree import TraceTree
from agl_core import semconv
from agl_core.adapter import AdapterReport, Reason
from agl_core.types import RewardMatchPolicy, Span

FIRST_OCCURRENCE = RewardMatchPolicy.FIRST_OCCURRENCE
FIRST_SIBLING = RewardMatchPolicy.FIRST_SIBLING


def span(
    id: str, parent: str | None, start: float | None, end: float | None, reward: Any = None
) -> Span:
    return Span.from_attributes(
        attributes={} if reward is None else {"agentlightning.reward.0.value": reward},
        span_id=id,
        trace_id="t" * 32,
        parent_id=parent,
        start_time=start,
        end_time=end,
    )


def match(
    spans: Sequence[Span],
    calls: Sequence[str],
    policy: RewardMatchPolicy,
    *,
    replace: bool = False,
) -> tuple[dict[str, float], AdapterReport]:
    tree = TraceTree.from_spans(spans)
    report = AdapterReport()
    nodes = [node for node in tree.traverse() if node.id in calls]
    return match_rewards(tree, nodes, policy, report, replace=replace), report


def naive_match(
    tree: TraceTree, calls: set[str], policy: RewardMatchPolicy, replace: bool
) -> dict[str, float]:
    """Match by the literal rule: look back from each reward for a call that may get it."""
    nodes = list(tree.traverse())
    timed = [node for node in nodes if node.start_time is not None]
    timed.sort(key=lambda node: node.start_time or 0.0)
    lists = [timed] if policy is FIRST_OCCURRENCE else [node.children for node in nodes]
    rewards: dict[str, float] = {}
    for nodes in lists:
        for place, node in enumerate(nodes):
            value = node.reward()
            if value is None or node.start_time is None:
                continue
            for call in reversed(nodes[: place + 1]):
                if (
                    call.id in calls
                    and (replace or call.id not in rewards)
                    and call.end_time is not None
                    and call.end_time <= node.start_time
                ):
                    rewards[call.id] = value
                    break
    return rewards


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[Span], set[str]]:
    spans: list[Span] = []
    calls: set[str] = set()
    time = st.none() | st.integers(0, 8)
    for index in range(draw(st.integers(1, 22))):
        parent = str(draw(st.integers(0, index - 1))) if index else None
        kind = draw(st.sampled_from(["plain", "call", "call", "reward"]))
        reward = index if kind == "reward" else None
        spans.append(span(str(index), parent, draw(time), draw(time), reward))
        if kind == "call":
            calls.add(str(index))
    return draw(st.permutations(spans)), calls


@settings(max_examples=500)
@given(traces(), st.sampled_from(list(RewardMatchPolicy)), st.booleans())
def test_matches_what_the_slow_version_matches(
    trace: tuple[list[Span], set[str]], policy: RewardMatchPolicy, replace: bool
) -> None:
    spans, calls = trace
    tree = TraceTree.from_spans(spans)
    report = AdapterReport()
    nodes = [node for node in tree.traverse() if node.id in calls]
    rewards = match_rewards(tree, nodes, policy, report, replace=replace)
    assert rewards == naive_match(tree, calls, policy, replace)
    given_out = sum(node.reward() is not None for node in tree.traverse())
    assert report.count("reward") == given_out - len(rewards)
    untimed = sum(n.reward() is not None and n.start_time is None for n in tree.traverse())
    assert report.count("reward", Reason.NO_TIME) == untimed


THREE_REWARDS_OF_TWO_CALLS = [
    span("r", None, 0, 9),
    span("a", "r", 1, 2),
    span("b", "r", 3, 4),
    span("x", "r", 5, 5, 0.5),
    span("y", "r", 6, 6, 0.25),
    span("z", "r", 7, 7, 0.125),
]


def test_a_second_reward_falls_through_to_the_earlier_call() -> None:
    for policy in RewardMatchPolicy:
        rewards, report = match(THREE_REWARDS_OF_TWO_CALLS, ["a", "b"], policy)
        assert rewards == {"b": 0.5, "a": 0.25}
        assert report.left_out == {("reward", Reason.NO_CALL): 1}


def test_a_second_reward_may_replace_the_first() -> None:
    for policy in RewardMatchPolicy:
        rewards, report = match(THREE_REWARDS_OF_TWO_CALLS, ["a", "b"], policy, replace=True)
        assert rewards == {"b": 0.125}
        assert report.left_out == {("reward", Reason.REPLACED): 2}


def test_an_agents_own_reward_does_not_replace_a_judges() -> None:
    own = span("y", "r", 6, 6, 0.25)
    own.attributes[semconv.WRITTEN_BY] = "attempt"
    spans = [span("r", None, 0, 9), span("a", "r", 1, 2), span("x", "r", 5, 5, 0.5), own]
    for policy in RewardMatchPolicy:
        rewards, report = match(spans, ["a"], policy, replace=True)
        assert rewards == {"a": 0.5}
        assert report.left_out == {("reward", Reason.REPLACED): 1}


def test_a_reward_waits_for_the_end_of_the_call() -> None:
    spans = [
        span("r", None, 0, 9),
        span("done", "r", 1, 2),
        span("running", "r", 1.5, 6),
        span("x", "r", 5, 5, 1.0),
        span("exact", "r", 6, 6, 2.0),
    ]
    rewards, _ = match(spans, ["done", "running"], FIRST_OCCURRENCE)
    assert rewards == {"done": 1.0, "running": 2.0}


def test_first_sibling_does_not_leak_to_another_agents_call() -> None:
    spans = [
        span("r", None, 0, 99),
        span("one", "r", 1, 50),
        span("a", "one", 2, 3),
        span("two", "r", 4, 50),
        span("b", "two", 5, 6),
        span("x", "one", 10, 10, 1.0),
    ]
    assert match(spans, ["a", "b"], FIRST_SIBLING)[0] == {"a": 1.0}
    assert match(spans, ["a", "b"], FIRST_OCCURRENCE)[0] == {"b": 1.0}


def test_a_reward_on_the_root_has_no_siblings() -> None:
    spans = [span("r", None, 5, 9, 1.0), span("a", "r", 1, 2)]
    rewards, report = match(spans, ["a"], FIRST_SIBLING)
    assert rewards == {}
    assert report.left_out == {("reward", Reason.NO_CALL): 1}


@pytest.mark.parametrize("value", ["many", math.nan, math.inf, [1.0]])
def test_a_reward_that_is_not_a_number_is_counted_and_not_assigned(value: Any) -> None:
    spans = [span("r", None, 0, 9), span("a", "r", 1, 2), span("x", "r", 3, 3, value)]
    for policy in RewardMatchPolicy:
        rewards, report = match(spans, ["a"], policy)
        assert rewards == {}
        assert report.left_out == {("reward", Reason.NOT_A_NUMBER): 1}


def test_times_that_are_not_numbers_are_unknown() -> None:
    spans = [
        span("r", None, 0, 9),
        span("a", "r", 1, math.nan),
        span("b", "r", 1, 2),
        span("x", "r", math.nan, 3, 1.0),
        span("y", "r", 4, 4, 0.5),
    ]
    for policy in RewardMatchPolicy:
        rewards, report = match(spans, ["a", "b"], policy)
        assert rewards == {"b": 0.5}
        assert report.left_out == {("reward", Reason.NO_TIME): 1}
