"""Execution strategies: where the algorithm and the runners run, and how they end.

:mod:`agl_core.execution._base` is the contract; the other modules are building blocks of
strategies.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
