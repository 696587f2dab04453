"""The adapters ``triplet``, ``proxy-triplet`` and ``messages``, and what other adapters read with.

:class:`TraceTree` arranges the spans of an attempt and finds its model calls, :class:`ModelCall`
reads one in any dialect, :func:`distinct_calls` decides what counts as one call,
:func:`match_rewards` assigns rewards to calls.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
