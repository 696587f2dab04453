"""Records values in the trace of an agent, and reads them back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from agl_core import semconv
from agl_core.emitter._tracer import tracer_for
from agl_core.otel._attributes import (
    flatten_attributes,
    full_qualified_name,
    sanitize_attributes,
)
from agl_core.types import Attributes, SpanCoreFields, SpanLike, TraceStatus

_BOOLS: Final = {"true": True, "false": False}


def emit_object(
    object: Any, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> SpanCoreFields:
    """Record a value; return the fields of its span.

    Strings, numbers, booleans and bytes keep their type; anything else is stored as JSON.

    Args:
        object: The value.
        attributes: Further attributes of the span; nested values are flattened, and a value that
            an attribute cannot hold is written as JSON.
        propagate: Record the span; if False, the arguments are only checked.

    Raises:
        RuntimeError: The value has no JSON form, or no tracer is active.
    """
    span_attributes = sanitize_attributes(flatten_attributes(dict(attributes or {})))
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
