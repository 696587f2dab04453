"""Records facts, texts, exceptions and values in the trace of an agent, and reads them back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from agl_core import semconv
from agl_core.emitter._tracer import tracer_for
from agl_core.otel._attributes import (
    check_attributes_sanity,
    flatten_attributes,
    format_exception_attributes,
    full_qualified_name,
    sanitize_attributes,
)
from agl_core.types import Attributes, SpanCoreFields, SpanLike, TraceStatus

_BOOLS: Final = {"true": True, "false": False}


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
    span_attributes = _flat(attributes)
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


def emit_exception(
    exception: BaseException,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> None:
    """Record an exception with its traceback.

    The span's own status is ``OK``, because the exception was handled.

    Args:
        exception: The exception.
        attributes: Further attributes of the span, as for :func:`emit_message`.
        propagate: Record the span; if False, the arguments are only checked.

    Raises:
        TypeError: ``exception`` is not an exception.
        RuntimeError: No tracer is active.
    """
    if not isinstance(exception, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"emit_exception takes an exception, not {type(exception).__name__}; use emit_message"
        )
    span_attributes = _flat(attributes)
    span_attributes.update(format_exception_attributes(exception))
    tracer_for(propagate).create_span(
        semconv.SPAN_EXCEPTION, attributes=span_attributes, status=TraceStatus(status_code="OK")
    )


def emit_object(
    object: Any, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> SpanCoreFields:
    """Record a value; return the fields of its span.

    Strings, numbers, booleans and bytes keep their type; anything else is stored as JSON.

    Args:
        object: The value.
        attributes: Further attributes of the span, as for :func:`emit_message`.
        propagate: Record the span; if False, the arguments are only checked.

    Raises:
        RuntimeError: The value has no JSON form, or no tracer is active.
    """
    span_attributes = _flat(attributes)
    span_attributes.update(_encode(object))
    return tracer_for(propagate).create_span(
        semconv.SPAN_OBJECT, attributes=span_attributes, status=TraceStatus(status_code="OK")
    )


def _encode(value: Any) -> Attributes:
    kind = cast("type[Any]", type(value))
    if kind in (str, int, float, bool):
        return {semconv.OBJECT_TYPE: kind.__name__, semconv.OBJECT_LITERAL: str(value)}
    if isinstance(value, bytes):
        literal = base64.b64encode(value).decode("ascii")
        return {semconv.OBJECT_TYPE: "bytes", semconv.OBJECT_LITERAL: literal}
    name = full_qualified_name(kind)
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise RuntimeError(
            f"an object of type {name} has no JSON form ({error}); emit a description instead"
        ) from error
    return {semconv.OBJECT_TYPE: name, semconv.OBJECT_JSON: text}


def get_object_value(span: SpanLike) -> Any:
    """Return the value of an object span, or None if the span holds none.

    A value stored as JSON is returned as plain dicts and lists, regardless of its type.

    Raises:
        RuntimeError: The stored value is not readable.
    """
    attributes = cast("Mapping[str, Any]", span.attributes or {})
    if semconv.OBJECT_JSON in attributes:
        try:
            return json.loads(attributes[semconv.OBJECT_JSON])
        except (TypeError, ValueError) as error:
            raise RuntimeError(f"{semconv.OBJECT_JSON} is not JSON: {error}") from error
    if semconv.OBJECT_LITERAL not in attributes:
        return None
    return _decode(attributes.get(semconv.OBJECT_TYPE), attributes[semconv.OBJECT_LITERAL])


def _decode(kind: Any, literal: Any) -> Any:
    try:
        match kind:
            case "str":
                return str(literal)
            case "int":
                return int(literal)
            case "float":
                return float(literal)
            case "bool":
                return _BOOLS[str(literal).lower()]  # JSON writers spell them in lower case
            case "bytes":
                return base64.b64decode(literal, validate=True)
            case _:
                raise RuntimeError(f"{semconv.OBJECT_TYPE} {kind!r} is unknown for a literal")
    except (TypeError, ValueError, KeyError, binascii.Error) as error:
        raise RuntimeError(
            f"{semconv.OBJECT_LITERAL} {literal!r} is not a literal of type {kind}"
        ) from error


def _flat(attributes: Mapping[str, Any] | None) -> Attributes:
    return sanitize_attributes(flatten_attributes(dict(attributes or {})))
