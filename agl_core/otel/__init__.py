"""Converts between OpenTelemetry's data and the framework's.

* :mod:`~agl_core.otel._attributes`: converts nested values to flat attributes, and back.
* :mod:`~agl_core.otel._links`: tags, links, and the search for the spans that links point at.
* :mod:`~agl_core.otel._convert`: converts SDK spans to :class:`~agl_core.types.Span`. The SDK is
  imported when its names are first used, by code that has its spans; the core does not require it.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
