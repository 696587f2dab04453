"""Records exceptions that an agent caught."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agl_core import semconv
from agl_core.emitter._tracer import tracer_for
from agl_core.otel._attributes import (
    flatten_attributes,
    format_exception_attributes,
    sanitize_attributes,
)
from agl_core.types import TraceStatus


def emit_exception(
    exception: BaseException,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> None:
    """Record an exception with its traceback.

    The span's own status is ``OK``, because the exception was handled.

    Args:
        exception: The exception.
        attributes: Further attributes of the span; nested values are flattened, and a value that
            an attribute cannot hold is written as JSON.
        propagate: Record the span; if False, the arguments are only checked.

    Raises:
        TypeError: ``exception`` is not an exception.
        RuntimeError: No tracer is active.
    """
    if not isinstance(exception, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"emit_exception takes an exception, not {type(exception).__name__}; use emit_message"
        )
    span_attributes = sanitize_attributes(flatten_attributes(dict(attributes or {})))
    span_attributes.update(format_exception_attributes(exception))
    tracer_for(propagate).create_span(
        semconv.SPAN_EXCEPTION, attributes=span_attributes, status=TraceStatus(status_code="OK")
    )
