"""Shows a trace in a terminal: a tree of spans with times, tokens, rewards and errors.

* :mod:`~agl_trace.rows`: arranges spans as rows, in the order of the tree.
* :mod:`~agl_trace.render`: writes rows as lines of text.
* :mod:`~agl_trace.graph`: draws the tree with Graphviz.
* :mod:`~agl_trace.selection`: finds the rollout and the attempt that a user names.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
