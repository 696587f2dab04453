"""Tests of the picture of a trace."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import pytest

from agl_adapters import TraceTree
from agl_core.errors import MissingDependencyError
from agl_core.types import Span
from agl_trace import tree_to_dot, visualize_tree


def span(
    id: str,
    parent: str | None,
    start: float | None = 0.0,
    end: float | None = 1.0,
    name: str = "work",
    attributes: Mapping[str, Any] | None = None,
) -> Span:
    return Span.from_attributes(
        attributes={**(attributes or {})},
        name=name,
        span_id=id,
        parent_id=parent,
        start_time=start,
        end_time=end,
    )


def test_the_picture_says_names_times_agents_and_rewards() -> None:
    tree = TraceTree.from_spans(
        [
            span("r", None, 10, 20),
            span("a", "r", 11, None, 'the "agent"', {"agent.name": "writer"}),
            span("w", "a", 12, 12.5, "reward", {"agentlightning.reward.0.value": 0.25}),
            span("other", "r"),
        ]
    )
    dot = tree_to_dot(tree)
    assert '"a" [label="the \\"agent\\"\\na\\nagent writer\\n11.000 - ? s"];' in dot
    assert '"w" [label="reward\\nw\\n12.000 - 12.500 s\\nreward 0.25"];' in dot
    assert '"r" -> "a";' in dot
    assert '"a" -> "w";' in dot
    only = tree_to_dot(tree, "reward")
    assert '"a" -> "w";' in only
    assert "other" not in only


def test_drawing_without_graphviz_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "graphviz":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match="pip install 'graphviz'"):
        visualize_tree(TraceTree.from_spans([span("r", None)]))


def test_operations_have_their_own_names() -> None:
    named = {"agentlightning.operation.name": "search_rooms"}
    tree = TraceTree.from_spans(
        [
            span("r", None),
            span("o", "r", name="agentlightning.operation", attributes=named),
            span("x", "r", name="agentlightning.operation"),
        ]
    )
    dot = tree_to_dot(tree)
    assert dot.count("search_rooms") == 1
    assert dot.count("agentlightning.operation") == 1, (
        "an operation without a name keeps the span's"
    )
    assert "search_rooms" in tree_to_dot(tree, "^search")
