"""Converts spans of the OpenTelemetry SDK to :class:`~agl_core.types.Span`.

No data of an SDK span is lost: times become seconds, ids become hex, and the fields that the model
does not have (``kind`` and ``instrumentation_scope``) become extra keys. Attribute values that the
model cannot hold (bytes, mappings, mixed sequences) are converted.

The models are built without validation: the SDK has already cleaned the values, and this code runs
for every span of every agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from pydantic import BaseModel

from agl_core.errors import error_message
from agl_core.otel._attributes import (
    flatten_attributes,
    format_exception_attributes,
    safe_text,
    sanitize_attribute_value,
    utf8,
)
from agl_core.types import (
    Attributes,
    Event,
    Link,
    OtelResource,
    Span,
    SpanContext,
    SpanCoreFields,
    TraceStatus,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource as SdkResource
    from opentelemetry.sdk.trace import Event as SdkEvent, ReadableSpan
    from opentelemetry.trace import (
        Link as SdkLink,
        Span as OpenSpan,
        SpanContext as SdkSpanContext,
        Status as SdkStatus,
    )

_NANOSECONDS: Final = 1e9  # per second
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_SCALARS: Final = frozenset({bool, int, float})

M = TypeVar("M", bound=BaseModel)


def to_span(readable: ReadableSpan, rollout_id: str, attempt_id: str, sequence_id: int) -> Span:
    """Convert a span of the SDK.

    Args:
        readable: The span, or any object with its attributes; one without a context gets ids of
            zeros.
        rollout_id: Rollout that the span belongs to.
        attempt_id: Attempt that the span belongs to.
        sequence_id: Order key within the rollout.
    """
    context = readable.get_span_context()
    parent = readable.parent
    trace_id, span_id = (_NO_TRACE, _NO_SPAN) if context is None else _ids(context)
    fields: dict[str, Any] = {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "sequence_id": sequence_id,
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": None if parent is None else format_span_id(parent.span_id),
        "name": utf8(readable.name),
        "status": to_status(readable.status),
        "attributes": to_attributes(readable.attributes),
        "events": [_event(event) for event in readable.events or ()],
        "links": [_link(link) for link in readable.links or ()],
        "start_time": to_seconds(readable.start_time),
        "end_time": to_seconds(readable.end_time),
        "context": None if context is None else _context(context),
        "parent": None if parent is None else _context(parent),
        "resource": _resource(readable.resource),
    }
    # Version 0.3 reads neither of these two, so objects made for it in place of a span lack them.
    extra: dict[str, Any] = {}
    kind = getattr(readable, "kind", None)
    if isinstance(kind, SpanKind):
        extra["kind"] = kind.name
    scope = getattr(readable, "instrumentation_scope", None)
    if isinstance(scope, InstrumentationScope):
        extra["instrumentation_scope"] = _scope(scope)
    return _build(Span, fields, extra)


def to_core_fields(readable: ReadableSpan) -> SpanCoreFields:
    """Convert the fields of an SDK span that do not depend on its place in a trace."""
    return _build(
        SpanCoreFields,
        {
            "name": utf8(readable.name),
            "status": to_status(readable.status),
            "attributes": to_attributes(readable.attributes),
            "start_time": to_seconds(readable.start_time),
            "end_time": to_seconds(readable.end_time),
        },
    )


def to_status(status: SdkStatus) -> TraceStatus:
    """Convert a status of the SDK."""
    description = status.description
    return _build(
        TraceStatus,
        {
            "status_code": status.status_code.name,
            "description": description and utf8(description),
        },
        {},
    )


def to_attributes(attributes: Mapping[str, Any] | None) -> Attributes:
    """Convert attribute values of the SDK to values that a :class:`Span` can hold.

    Tuples become lists, bytes become hex digits, nested mappings become dotted keys, and mixed
    sequences become JSON. None is dropped, as in OpenTelemetry's own exporters.
    """
    if not attributes:
        return {}
    # Iterating over the SDK's mapping is slow; its copy is a plain dict.
    values = cast(
        "Mapping[str, Any]",
        attributes.copy() if isinstance(attributes, MappingProxyType) else attributes,
    )
    result: Attributes = {}
    for key, value in values.items():
        if type(value) in _SCALARS or (type(value) is str and value.isascii()):
            result[key] = value
        elif value is not None:
            _add(result, key, value)
    return result


def _add(result: Attributes, key: str, value: Any) -> None:
    if isinstance(value, str):
        result[key] = utf8(value)
    elif isinstance(value, bytes):
        result[key] = value.hex()
    elif isinstance(value, Mapping):
        nested = cast("Mapping[str, Any]", value)
        for path, leaf in flatten_attributes({key: dict(nested)}).items():
            result.update(to_attributes({path: leaf}))
    elif isinstance(value, Sequence):
        items = list(cast("Sequence[Any]", value))
        kinds = set(map(type, items))
        if len(kinds) == 1 and kinds <= _SCALARS:  # fast path for long lists of token ids
            result[key] = items
        else:
            result[key] = sanitize_attribute_value(
                [utf8(item) if isinstance(item, str) else item for item in items]
            )
    else:
        result[key] = utf8(safe_text(value))


def record_failure(span: OpenSpan, error: BaseException) -> None:
    """Record an exception in an open span of the SDK, and set the span's status."""
    try:
        span.record_exception(error)
    except Exception:  # the exception's own ``__str__`` raised
        span.add_event("exception", format_exception_attributes(error))
    span.set_status(StatusCode.ERROR, error_message(error))


def to_seconds(nanoseconds: int | None) -> float | None:
    """Convert a time of the SDK."""
    return None if nanoseconds is None else nanoseconds / _NANOSECONDS


def _ids(context: SdkSpanContext) -> tuple[str, str]:
    return format_trace_id(context.trace_id), format_span_id(context.span_id)


def _context(context: SdkSpanContext) -> SpanContext:
    trace_id, span_id = _ids(context)
    fields: dict[str, Any] = {
        "trace_id": trace_id,
        "span_id": span_id,
        "is_remote": context.is_remote,
        "trace_state": dict(getattr(context, "trace_state", None) or ()),
    }
    return _build(SpanContext, fields, {})


def _event(event: SdkEvent) -> Event:
    return Event.model_construct(
        name=utf8(event.name),
        attributes=to_attributes(event.attributes),
        timestamp=to_seconds(event.timestamp),
    )


def _link(link: SdkLink) -> Link:
    return Link.model_construct(
        context=_context(link.context),
        attributes=to_attributes(link.attributes) or None,
    )


# A cache by identity, because hashing an SDK resource serializes it to JSON. Resources are few and
# immutable. Each entry keeps its resource alive, so that its id is not reused.
_resources: dict[int, tuple[SdkResource, Attributes]] = {}


def _resource(resource: SdkResource) -> OtelResource:
    known = _resources.get(id(resource))
    if known is None or known[0] is not resource:
        if len(_resources) >= 64:
            _resources.clear()
        known = _resources[id(resource)] = (resource, to_attributes(resource.attributes))
    return _build(OtelResource, {"attributes": known[1].copy(), "schema_url": resource.schema_url})


def _scope(scope: InstrumentationScope) -> dict[str, str]:
    named = {"name": scope.name, "version": scope.version, "schema_url": scope.schema_url}
    return {key: value for key, value in named.items() if value}


def _build(model: type[M], fields: dict[str, Any], extra: dict[str, Any] | None = None) -> M:
    # The same as BaseModel.model_construct with every field given, at a quarter of its cost:
    # model_construct would take most of the time of a conversion.
    instance = model.__new__(model)
    object.__setattr__(instance, "__dict__", fields)
    object.__setattr__(
        instance, "__pydantic_fields_set__", {*fields, *extra} if extra else set(fields)
    )
    object.__setattr__(instance, "__pydantic_extra__", extra)
    object.__setattr__(instance, "__pydantic_private__", None)
    return instance
