"""A trace for people: its spans as a tree with times, tokens, rewards and errors.

* :mod:`~agl_core.trace_view.rows`: spans to rows, in the order of the tree.
* :mod:`~agl_core.trace_view.render`: rows to lines of text.
"""

from agl_core.trace_view.render import Style, render_trace
from agl_core.trace_view.rows import SpanRow, TraceSummary, TraceView, view_trace

__all__ = ["SpanRow", "Style", "TraceSummary", "TraceView", "render_trace", "view_trace"]
