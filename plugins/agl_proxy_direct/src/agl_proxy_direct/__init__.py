"""The direct LLM proxy: relays model calls to servers over HTTP and records each in a span.

The package also exports the parts of a proxy for other backends. Such a proxy is a subclass of
:class:`DirectProxy` with an :class:`UpstreamSpec`, which reads the model list and makes the
:class:`Upstream`.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
