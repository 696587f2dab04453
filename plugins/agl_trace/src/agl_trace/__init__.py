"""Shows a trace in a terminal: a tree of spans with times, tokens, rewards and errors.

* :mod:`~agl_trace.rows`: arranges spans as rows, in the order of the tree.
* :mod:`~agl_trace.render`: writes rows as lines of text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_trace.render import Style, render_trace
    from agl_trace.rows import SpanRow, TraceSummary, TraceView, view_trace

__all__ = [
    "SpanRow",
    "Style",
    "TraceSummary",
    "TraceView",
    "render_trace",
    "view_trace",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "SpanRow": "agl_trace.rows",
        "Style": "agl_trace.render",
        "TraceSummary": "agl_trace.rows",
        "TraceView": "agl_trace.rows",
        "render_trace": "agl_trace.render",
        "view_trace": "agl_trace.rows",
    },
)
