"""The engine ``jinja`` of :class:`~agl_core.types.PromptTemplate`."""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
