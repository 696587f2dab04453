"""Converts between OpenTelemetry's data and the framework's, and manages the tracer provider.

* :mod:`~agl_core.otel._attributes`: converts nested values to flat attributes, and back.
* :mod:`~agl_core.otel._links`: tags, links, and the search for the spans that links point at.
* :mod:`~agl_core.otel._convert`: converts SDK spans to :class:`~agl_core.types.Span`.
* :mod:`~agl_core.otel._later`: attributes that are computed when they are read.
* :mod:`~agl_core.otel._provider`: the process's tracer provider.

The first two do not import OpenTelemetry. The others import its SDK, so their names are imported
on first use.
"""

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
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
    utf8,
)
from agl_core.otel._links import (
    extract_links_from_attributes,
    extract_tags_from_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
)

if TYPE_CHECKING:
    from agl_core.otel._convert import record_failure
    from agl_core.otel._later import set_attributes_later
    from agl_core.otel._provider import get_tracer, get_tracer_provider

__all__ = [
    "check_attributes_sanity",
    "extract_links_from_attributes",
    "extract_tags_from_attributes",
    "filter_and_unflatten_attributes",
    "filter_attributes",
    "flatten_attributes",
    "format_exception_attributes",
    "full_qualified_name",
    "get_tracer",
    "get_tracer_provider",
    "make_link_attributes",
    "make_tag_attributes",
    "query_linked_spans",
    "record_failure",
    "sanitize_attribute_value",
    "sanitize_attributes",
    "set_attributes_later",
    "unflatten_attributes",
    "utf8",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "get_tracer": "agl_core.otel._provider",
        "get_tracer_provider": "agl_core.otel._provider",
        "record_failure": "agl_core.otel._convert",
        "set_attributes_later": "agl_core.otel._later",
    },
)
