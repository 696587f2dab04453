"""The store in a terminal: ``agl top``, and lists of what a store holds.

``agl rollouts``, ``agl attempts``, ``agl workers`` and ``agl resources`` print one list each, for
people or as JSON, once or whenever something changes.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
