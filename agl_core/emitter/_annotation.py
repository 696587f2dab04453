"""Annotations: spans with facts about the trace they are in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agl_core import semconv
from agl_core.emitter._tracer import tracer_for
from agl_core.otel._attributes import check_attributes_sanity, flatten_attributes
from agl_core.types import SpanCoreFields, TraceStatus


def emit_annotation(annotation: Mapping[str, Any], propagate: bool = True) -> SpanCoreFields:
    """Record facts about the running attempt.

    Args:
        annotation: The facts; nested dicts and lists become dotted keys.
        propagate: Record the span; if False, it is only returned.

    Raises:
        ValueError: A value is neither str, int, float, bool nor a list of one of them.
        RuntimeError: No tracer is active.
    """
    attributes = flatten_attributes(dict(annotation))
    check_attributes_sanity(attributes)
    return tracer_for(propagate).create_span(
        semconv.SPAN_ANNOTATION, attributes=attributes, status=TraceStatus(status_code="OK")
    )
