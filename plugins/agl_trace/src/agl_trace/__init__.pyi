from .graph import (
    tree_to_dot as tree_to_dot,
    visualize_tree as visualize_tree,
)
from .render import (
    Style as Style,
    render_trace as render_trace,
)
from .rows import (
    SpanRow as SpanRow,
    TraceSummary as TraceSummary,
    TraceView as TraceView,
    view_trace as view_trace,
)
from .selection import (
    LATEST as LATEST,
    find_attempt as find_attempt,
    find_rollout as find_rollout,
)
