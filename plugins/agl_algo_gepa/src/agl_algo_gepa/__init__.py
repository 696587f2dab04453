"""Reflective prompt evolution with a Pareto front, by the ``gepa`` library."""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
