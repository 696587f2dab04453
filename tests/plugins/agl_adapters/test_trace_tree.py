"""Compares building and repairing trees with slow independent versions on random traces."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agl_adapters import CallRules, TracerTraceToTriplet
from agl_adapters.tree import VIRTUAL_ROOT, TraceTree
from agl_core.adapter import AdapterReport, Reason, Repair
from agl_core.errors import InvalidArgumentError
from agl_core.types import Span


def span(
    id: str,
    parent: str | None = None,
    start: float | None = 0.0,
    end: float | None = 1.0,
    name: str = "work",
    **attributes: Any,
) -> Span:
    return Span.from_attributes(
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
        rollout_id="ro",
        attempt_id="at",
        name=name,
        trace_id="t" * 32,
        span_id=id,
        parent_id=parent,
        start_time=start,
        end_time=end,
    )


def shape(tree: TraceTree) -> dict[str, list[str]]:
    return {
        node.id: [child.id for child in node.children] for node in tree.traverse() if node.children
    }


# -- building ------------------------------------------------------------------------------------


def test_children_keep_the_order_of_the_input() -> None:
    tree = TraceTree.from_spans([span("b", "r"), span("r"), span("a", "r"), span("c", "a")])
    assert tree.id == "r"
    assert shape(tree) == {"r": ["b", "a"], "a": ["c"]}
    assert [node.id for node in tree.traverse()] == ["r", "b", "a", "c"]
    found = tree.find_id("c")
    assert found is not None
    assert found.span.parent_id == "a"
    assert tree.find_id("nowhere") is None


def remote(id: str, parent: str, start: float | None, end: float | None) -> Span:
    """Return a span whose parent another process recorded."""
    made = span(id, parent, start, end)
    assert made.parent is not None
    return made.model_copy(update={"parent": made.parent.model_copy(update={"is_remote": True})})


@pytest.mark.parametrize("skew", [7200.0, -7200.0, 0.4])
def test_spans_of_another_machine_move_into_the_call_that_caused_them(skew: float) -> None:
    spans = [
        span("agent", start=0, end=9),
        span("call", "agent", start=1, end=5),
        remote("proxy", "call", start=3 + skew, end=5 + skew),
        span("model", "proxy", start=3.5 + skew, end=4 + skew),
    ]
    times = {n.id: (n.start_time, n.end_time) for n in TraceTree.from_spans(spans).traverse()}
    assert times["call"] == (1, 5)
    assert times["proxy"] == pytest.approx((2, 4))
    assert times["model"] == pytest.approx((2.5, 3))
    assert spans[2].start_time == 3 + skew  # what the store keeps stays


@pytest.mark.parametrize(
    ("start", "end", "moved"),
    [(1.5, 5, (1.5, 5)), (90, 99, (1, 10)), (None, 7, (None, 7)), (7, None, (7, None))],
)
def test_only_known_times_outside_of_the_call_move(start: Any, end: Any, moved: Any) -> None:
    tree = TraceTree.from_spans([span("call", start=1, end=5), remote("proxy", "call", start, end)])
    (proxy,) = tree.children
    assert (proxy.start_time, proxy.end_time) == moved


def test_a_span_of_the_same_process_may_outlive_its_parent() -> None:
    tree = TraceTree.from_spans([span("call", start=1, end=5), span("late", "call", 4, 8)])
    assert (tree.children[0].start_time, tree.children[0].end_time) == (4, 8)


def test_a_missing_parent_is_replaced_by_a_virtual_one_with_its_childrens_times() -> None:
    report = AdapterReport()
    tree = TraceTree.from_spans(
        [span("a", "lost", 3, 5), span("b", "lost", 1, 4), span("c", "lost", None, None)], report
    )
    assert (tree.id, tree.span.name) == ("lost", "agentlightning.virtual")
    assert (tree.start_time, tree.end_time) == (1, 5)
    assert shape(tree) == {"lost": ["a", "b", "c"]}
    assert report.repaired == {("span", Repair.MISSING_PARENT): 1}
    assert report.left_out == {}


def test_several_roots_come_under_a_virtual_root() -> None:
    tree = TraceTree.from_spans(
        [span("a", None, 1, 2), span("x", "lost", 2, 7), span("b", None, 3, 4)]
    )
    assert (tree.id, tree.span.name) == (VIRTUAL_ROOT, VIRTUAL_ROOT)
    assert shape(tree) == {VIRTUAL_ROOT: ["a", "lost", "b"], "lost": ["x"]}
    assert (tree.start_time, tree.end_time) == (1, 4)


def test_of_spans_with_one_id_the_first_counts_and_the_others_are_reported() -> None:
    report = AdapterReport()
    tree = TraceTree.from_spans([span("r"), span("a", "r", name="first"), span("a", "r")], report)
    assert [node.span.name for node in tree.traverse()] == ["work", "first"]
    assert report.left_out == {("span", Reason.DUPLICATE_SPAN): 1}


def test_a_trace_without_spans_or_root_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one span"):
        TraceTree.from_spans([])
    with pytest.raises(ValueError, match="cycles"):
        TraceTree.from_spans([span("a", "b"), span("b", "a")])
    with pytest.raises(ValueError, match="cycles"):
        TraceTree.from_spans([span("a", "a")])


def test_cycles_beside_a_root_are_cut_open_and_nothing_is_lost() -> None:
    report = AdapterReport()
    tree = TraceTree.from_spans(
        [span("leaf", "y"), span("root"), span("y", "z"), span("z", "y"), span("self", "self")],
        report,
    )
    assert shape(tree) == {
        VIRTUAL_ROOT: ["root", "y", "self"],
        "y": ["leaf", "z"],
    }
    assert report.repaired == {("span", Repair.CYCLE): 2}


ids = st.sampled_from("abcdefghij")


@given(
    st.lists(
        st.tuples(ids, st.none() | ids | st.sampled_from(["lost", "gone"])), min_size=1, max_size=14
    )
)
def test_every_span_is_in_the_tree_once_whatever_the_parents(
    pairs: list[tuple[str, str | None]],
) -> None:
    report = AdapterReport()
    try:
        tree = TraceTree.from_spans([span(*pair) for pair in pairs], report)
    except InvalidArgumentError:
        known = dict(reversed(pairs))
        assert all(parent in known for parent in known.values())  # no span is a root
        return
    recorded = {pair[0] for pair in pairs}
    found = [node.id for node in tree.traverse()]
    assert len(found) == len(set(found))
    assert recorded <= set(found)
    missing = {parent for _, parent in pairs if parent} - recorded
    assert set(found) - recorded <= missing | {VIRTUAL_ROOT}
    assert report.count("span") == len(pairs) - len(recorded)


def test_a_trace_of_twenty_thousand_levels_does_not_exhaust_the_stack() -> None:
    depth = 20_000
    spans = [
        span(str(i), str(i - 1) if i else None, float(i), 2.0 * depth - i) for i in range(depth)
    ]
    adapter = TracerTraceToTriplet(llm_call_match=None)
    assert adapter.adapt(spans) == []
    assert sum(1 for _ in adapter.tree(spans).traverse()) == depth


# -- repairing -----------------------------------------------------------------------------------


def naive_repair(tree: TraceTree) -> None:
    """Do the same as ``repair_hierarchy`` by comparing every pair of spans."""
    top = tree
    while len(top.children) == 1:
        top = top.children[0]
    order = [node for node in top.traverse() if node is not top]
    families = {id(child): {id(node) for node in child.traverse()} for child in top.children}
    received: list[TraceTree] = []
    for child in list(top.children):
        if len(top.children) == 1:
            break
        if child.start_time is None or child.end_time is None or child.end_time < child.start_time:
            continue
        best: TraceTree | None = None
        best_slack = math.inf
        for other in order:
            if id(other) in families[id(child)]:
                continue
            if other.start_time is None or other.end_time is None:
                continue
            before = child.start_time - other.start_time
            after = other.end_time - child.end_time
            if before >= 0 and after >= 0 and 0 < before + after < best_slack:
                best, best_slack = other, before + after
        if best is None or any(node is best for node in child.traverse()):
            continue
        top.children.remove(child)
        best.children.append(child)
        received.append(best)
    for node in received:
        late = float("inf")
        node.children.sort(key=lambda c: late if c.start_time is None else c.start_time)


@st.composite
def traces(draw: st.DrawFn) -> list[Span]:
    size = draw(st.integers(1, 25))
    time = st.none() | st.integers(0, 12)
    spans: list[Span] = []
    for index in range(size):
        parent = draw(st.none() | st.integers(0, max(0, index - 1))) if index else None
        start, end = draw(time), draw(time)
        if start is not None and end is not None and draw(st.integers(0, 9)):
            start, end = min(start, end), max(start, end)
        spans.append(span(str(index), None if parent is None else str(parent), start, end))
    return draw(st.permutations(spans))


@settings(max_examples=500)
@given(traces())
def test_repair_moves_what_the_slow_version_moves(spans: list[Span]) -> None:
    fast, slow = TraceTree.from_spans(spans), TraceTree.from_spans(spans)
    report = AdapterReport()
    before = {(node.id, child.id) for node in fast.traverse() for child in node.children}
    fast.repair_hierarchy(report)
    naive_repair(slow)
    assert shape(fast) == shape(slow)
    after = {(node.id, child.id) for node in fast.traverse() for child in node.children}
    assert report.repaired.get(("span", Repair.REPARENTED), 0) == len(after - before)
    assert {node.id for node in fast.traverse()} == {node.id for node in slow.traverse()}


def test_a_stray_call_moves_under_the_tightest_agent() -> None:
    tree = TraceTree.from_spans(
        [
            span("root", None, 0, 100),
            span("outer", "root", 10, 50),
            span("inner", "outer", 20, 40),
            span("late", "inner", 30, 31),
            span("stray", "root", 25, 35),
            span("other", "root", 60, 70),
        ]
    )
    tree.repair_hierarchy()
    assert shape(tree) == {
        "root": ["outer", "other"],
        "outer": ["inner"],
        "inner": ["stray", "late"],  # sorted by start
    }


def test_spans_of_the_very_same_times_do_not_enclose_each_other() -> None:
    tree = TraceTree.from_spans([span("r", None, 0, 9), span("a", "r", 1, 2), span("b", "r", 1, 2)])
    tree.repair_hierarchy()
    assert shape(tree) == {"r": ["a", "b"]}


def test_a_child_that_outlives_its_parent_never_swallows_it() -> None:
    # `back` outlives `agent`, which started it, and encloses it in time.
    tree = TraceTree.from_spans(
        [
            span("r", None, 0, 99),
            span("agent", "r", 10, 20),
            span("back", "agent", 10, 30),
            span("stray", "r", 12, 25),
        ]
    )
    tree.repair_hierarchy()
    assert shape(tree) == {"r": ["agent"], "agent": ["back"], "back": ["stray"]}


# -- finding calls and agents --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "attributes", "agent"),
    [
        ("x", {"agent.name": "writer", "executor.id": "no"}, "writer"),
        ("x", {"graph.node.id": "n", "openinference.span.kind": "AGENT"}, "n"),
        ("x", {"graph.node.id": "n", "openinference.span.kind": "CHAIN"}, None),
        ("x", {"gen_ai.agent.name": "g", "gen_ai.operation.name": "invoke_agent"}, "g"),
        ("x", {"gen_ai.agent.name": "g", "gen_ai.operation.name": "chat"}, None),
        ("x", {}, None),
    ],
)
def test_agent_names_are_read_where_the_cores_dialects_write_them(
    name: str, attributes: dict[str, Any], agent: str | None
) -> None:
    tree = TraceTree.from_spans(
        [span("a", name=name).model_copy(update={"attributes": attributes})]
    )
    assert tree.agent_name() == agent


def test_an_agents_name_covers_what_is_below_it_and_not_itself() -> None:
    def call(id: str, parent: str, **attributes: Any) -> Span:
        return span(id, parent, name="llm", gen_ai__response__id=id, **attributes)

    tree = TraceTree.from_spans(
        [
            span("r"),
            call("writer", "r", agent__name="writer"),
            call("w1", "writer"),
            span("critic", "writer", agent__name="critic"),
            call("c1", "critic"),
            span("deep", "critic", agent__name="writer"),
            call("w2", "deep"),
            call("out", "r"),
        ]
    )
    report = AdapterReport()
    found = tree.find_llm_calls(CallRules("llm", "wri"), report)
    assert [(call.node.id, call.agent) for call in found] == [("w1", "writer"), ("w2", "writer")]
    assert report.left_out == {("call", Reason.OTHER_AGENT): 3}
    everyone = tree.find_llm_calls(CallRules("llm"))
    assert [(call.node.id, call.agent) for call in everyone] == [
        ("writer", "*"),
        ("w1", "writer"),
        ("c1", "critic"),
        ("w2", "writer"),
        ("out", "*"),
    ]
