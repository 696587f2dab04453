"""The default tracer: everything OpenTelemetry sees, and the calls of model clients.

Besides the tracer, this package exports what tracers for other instrumentation libraries are made
of: model calls described in other attributes (:class:`CallWriter`), spans that become current
between two callbacks (:func:`enter_span`), libraries instrumented when the agent imports them
(:func:`on_import`, :func:`acquire_instrumentor`), attributes that are computed when they are read
(:func:`set_attributes_later`), and copies of objects that outlive the call (:func:`to_jsonable`).

Modules are imported at first use, so that naming the tracer does not import OpenTelemetry.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
