"""A tracer that records nothing: only what an agent returns is stored."""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
