"""Between OpenTelemetry's data and ours.

* :mod:`~agl_core.otel._attributes`: nested values as flat attributes, and back.
* :mod:`~agl_core.otel._links`: tags and links, and the spans that links point at.
* :mod:`~agl_core.otel._convert`: SDK spans as :class:`~agl_core.types.Span`.
* :mod:`~agl_core.otel._later`: attributes that are made when they are read.
* :mod:`~agl_core.otel._provider`: the process's tracer provider.
* :mod:`~agl_core.otel._encode`, :mod:`~agl_core.otel._send`: spans as OTLP, to any backend.

The first two import no OpenTelemetry; the third to fifth import its SDK. So what the later ones
export here is imported when it is first used.
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
)
from agl_core.otel._links import (
    extract_links_from_attributes,
    extract_tags_from_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
)

if TYPE_CHECKING:
    from agl_core.otel._later import set_attributes_later
    from agl_core.otel._provider import get_tracer, get_tracer_provider
    from agl_core.otel._send import OtlpSender, SendOutcome, headers_from_environment

__all__ = [
    "OtlpSender",
    "SendOutcome",
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
    "headers_from_environment",
    "make_link_attributes",
    "make_tag_attributes",
    "query_linked_spans",
    "sanitize_attribute_value",
    "sanitize_attributes",
    "set_attributes_later",
    "unflatten_attributes",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "OtlpSender": "agl_core.otel._send",
        "SendOutcome": "agl_core.otel._send",
        "get_tracer": "agl_core.otel._provider",
        "get_tracer_provider": "agl_core.otel._provider",
        "headers_from_environment": "agl_core.otel._send",
        "set_attributes_later": "agl_core.otel._later",
    },
)
