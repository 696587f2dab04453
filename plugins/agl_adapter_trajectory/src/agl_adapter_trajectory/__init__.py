"""The adapter ``trajectory``: spans to rows of tokens, for training weights."""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
