"""Shows a trace in a terminal: a tree of spans with times, tokens, rewards and errors.

* :mod:`~agl_trace.rows`: arranges spans as rows, in the order of the tree.
* :mod:`~agl_trace.render`: writes rows as lines of text.
* :mod:`~agl_trace.graph`: draws the tree with Graphviz.
* :mod:`~agl_trace.selection`: finds the rollout and the attempt that a user names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_trace.graph import tree_to_dot, visualize_tree
    from agl_trace.render import Style, render_trace
    from agl_trace.rows import SpanRow, TraceSummary, TraceView, view_trace
    from agl_trace.selection import LATEST, find_attempt, find_rollout

__all__ = [
    "LATEST",
    "SpanRow",
    "Style",
    "TraceSummary",
    "TraceView",
    "find_attempt",
    "find_rollout",
    "render_trace",
    "tree_to_dot",
    "view_trace",
    "visualize_tree",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "LATEST": "agl_trace.selection",
        "SpanRow": "agl_trace.rows",
        "Style": "agl_trace.render",
        "TraceSummary": "agl_trace.rows",
        "TraceView": "agl_trace.rows",
        "find_attempt": "agl_trace.selection",
        "find_rollout": "agl_trace.selection",
        "render_trace": "agl_trace.render",
        "tree_to_dot": "agl_trace.graph",
        "view_trace": "agl_trace.rows",
        "visualize_tree": "agl_trace.graph",
    },
)
