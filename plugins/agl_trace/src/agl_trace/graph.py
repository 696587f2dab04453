"""Draws the tree of a trace with Graphviz."""

from __future__ import annotations

import re
from pathlib import Path

from agl_adapters import TraceTree
from agl_core.errors import MissingDependencyError
from agl_trace.rows import operation_of

__all__ = ["tree_to_dot", "visualize_tree"]


def visualize_tree(
    tree: TraceTree, filename: str | Path = "trace_tree", interested_span_match: str | None = None
) -> Path:
    """Draw a tree to ``<filename>.png``.

    Args:
        tree: The tree.
        filename: Path of the picture, without its suffix.
        interested_span_match: Regular expression searched in names of spans and operations; only
            matching spans and their ancestors are drawn. None: all spans.

    Returns:
        The path of the picture.

    Raises:
        MissingDependencyError: The ``graphviz`` package is not installed.
    """
    try:
        import graphviz  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    except ImportError as error:
        raise MissingDependencyError("drawing a trace", pip="graphviz") from error
    source = graphviz.Source(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        tree_to_dot(tree, interested_span_match)
    )
    path = source.render(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        str(filename), format="png", cleanup=True
    )
    return Path(str(path))  # pyright: ignore[reportUnknownArgumentType]


def tree_to_dot(tree: TraceTree, interested_span_match: str | None = None) -> str:
    """Return a tree in Graphviz's DOT language; parameters as for :func:`visualize_tree`."""
    nodes = list(tree.traverse())
    parents = {child.id: node.id for node in nodes for child in node.children}
    drawn = {node.id for node in nodes}
    if interested_span_match is not None:
        drawn.clear()
        for node in nodes:
            names = (node.span.name, operation_of(node.span) or "")
            if any(re.search(interested_span_match, name) for name in names):
                above: str | None = node.id
                while above is not None and above not in drawn:
                    drawn.add(above)
                    above = parents.get(above)
    origin = min((node.start_time for node in nodes if node.start_time is not None), default=0.0)
    lines = ["digraph trace {", "  node [shape=box];"]
    for node in nodes:
        if node.id in drawn:
            lines.append(f"  {_quote(node.id)} [label={_quote(_label(node, origin))}];")
            lines += [
                f"  {_quote(node.id)} -> {_quote(child.id)};"
                for child in node.children
                if child.id in drawn
            ]
    return "\n".join([*lines, "}"])


def _label(node: TraceTree, origin: float) -> str:
    """Return name, id, agent, seconds since the trace began, and reward, one per line."""
    lines = [operation_of(node.span) or node.span.name, node.id[:8]]
    agent = node.agent_name()
    if agent is not None:
        lines.append(f"agent {agent}")
    times = ["?" if t is None else f"{t - origin:.3f}" for t in (node.start_time, node.end_time)]
    lines.append(f"{times[0]} - {times[1]} s")
    reward = node.reward()
    if reward is not None:
        lines.append(f"reward {reward:g}")
    return "\n".join(lines)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
