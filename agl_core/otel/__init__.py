"""Converts between OpenTelemetry's data and the framework's.

* :mod:`~agl_core.otel._attributes`: converts nested values to flat attributes, and back.
* :mod:`~agl_core.otel._links`: tags, links, and the search for the spans that links point at.
* :mod:`~agl_core.otel._convert`: converts SDK spans to :class:`~agl_core.types.Span`. The SDK is
  imported when its names are first used, by code that has its spans; the core does not require it.
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
    safe_text,
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
    from agl_core.otel._convert import record_failure, to_core_fields, to_span

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
    "record_failure",
    "safe_text",
    "sanitize_attribute_value",
    "sanitize_attributes",
    "to_core_fields",
    "to_span",
    "unflatten_attributes",
    "utf8",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "record_failure": "agl_core.otel._convert",
        "to_core_fields": "agl_core.otel._convert",
        "to_span": "agl_core.otel._convert",
    },
)
