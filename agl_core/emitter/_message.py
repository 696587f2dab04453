"""Records text in the trace of an agent, and reads it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from agl_core import semconv
from agl_core.emitter._tracer import tracer_for
from agl_core.otel._attributes import flatten_attributes, sanitize_attributes
from agl_core.types import SpanLike


def emit_message(
    message: str, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> None:
    """Record a text.

    Args:
        message: The text.
        attributes: Further attributes of the span; nested values are flattened, and a value that
            an attribute cannot hold is written as JSON.
        propagate: Record the span; if False, the arguments are only checked.

    Raises:
        TypeError: ``message`` is not a string.
        RuntimeError: No tracer is active.
    """
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"emit_message takes a string, not {type(message).__name__}; use emit_object"
        )
    span_attributes = sanitize_attributes(flatten_attributes(dict(attributes or {})))
    span_attributes[semconv.MESSAGE_BODY] = message
    tracer_for(propagate).create_span(semconv.SPAN_MESSAGE, attributes=span_attributes)


def get_message_value(span: SpanLike) -> str | None:
    """Return the text of a message span, or None if the span holds none.

    Raises:
        TypeError: The value in the span is not a string.
    """
    message = cast("Mapping[str, Any]", span.attributes or {}).get(semconv.MESSAGE_BODY)
    if message is not None and not isinstance(message, str):
        raise TypeError(f"{semconv.MESSAGE_BODY} must be a string, not {type(message).__name__}")
    return message
