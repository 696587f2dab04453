"""Between OpenTelemetry's data and ours.

* :mod:`~agl_core.otel._attributes`: nested values as flat attributes, and back.
* :mod:`~agl_core.otel._links`: tags and links, and the spans that links point at.
* :mod:`~agl_core.otel._convert`: SDK spans as :class:`~agl_core.types.Span`.
* :mod:`~agl_core.otel._later`: attributes that are made when they are read.
* :mod:`~agl_core.otel._provider`: the process's tracer provider.
* :mod:`~agl_core.otel._encode`, :mod:`~agl_core.otel._send`: spans as OTLP, to any backend.

The first two import no OpenTelemetry; the third to fifth import its SDK.
"""

from agl_core.otel._attributes import (
    check_attributes_sanity,
    filter_and_unflatten_attributes,
    filter_attributes,
    flatten_attributes,
    format_exception_attributes,
    full_qualified_name,
    sanitize_attribute_value,
    sanitize_attributes,
    unflatten_attributes,
)
from agl_core.otel._links import (
    extract_links_from_attributes,
    extract_tags_from_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
)

__all__ = [
    "check_attributes_sanity",
    "extract_links_from_attributes",
    "extract_tags_from_attributes",
    "filter_and_unflatten_attributes",
    "filter_attributes",
    "flatten_attributes",
    "format_exception_attributes",
    "full_qualified_name",
    "make_link_attributes",
    "make_tag_attributes",
    "query_linked_spans",
    "sanitize_attribute_value",
    "sanitize_attributes",
    "unflatten_attributes",
]
