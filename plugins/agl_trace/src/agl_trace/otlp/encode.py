"""Encodes spans as an OTLP export request, which any OpenTelemetry backend accepts.

Format: opentelemetry.io/docs/specs/otlp and opentelemetry-proto, ``trace/v1/trace.proto``. OTLP has
no fields for rollout, attempt and sequence id, so they are sent as attributes, which the store
server reads: rollout and attempt on the resource, the sequence id on the span.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic_core import to_json

from agl_core import semconv
from agl_core.otel import utf8
from agl_core.types import Link, Span

__all__ = ["to_export_request"]

_STATUS_CODES: Final = {"UNSET": 0, "OK": 1, "ERROR": 2}
_KINDS: Final = {"INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
_NANOS_PER_SECOND: Final = 1_000_000_000
_MAX_SECONDS: Final = (2**64 - 1) // _NANOS_PER_SECOND
_INT64: Final = range(-(2**63), 2**63)
_HEX: Final = frozenset(string.hexdigits)


def to_export_request(
    spans: Iterable[Span], *, routing: bool = True, numbered: bool = True
) -> ExportTraceServiceRequest:
    """Encode spans, grouped by the resource and the scope that they came from.

    An id that is not an OpenTelemetry id (a trace id of 16 bytes, a span id of 8, not all zero) is
    replaced by its hash. The hash is the same in every request, so children still refer to their
    parents. A span with only one of its two times gets that time for both; a span without times
    gets 0, which means unknown.

    Args:
        spans: The spans; not changed.
        routing: Add the ids of rollout and attempt to the resource.
        numbered: Add each span's sequence id to its attributes.
    """
    request: Any = ExportTraceServiceRequest()
    resources: dict[Any, Any] = {}
    scopes: dict[Any, Any] = {}
    for span in spans:
        attributes: dict[str, Any] = dict(span.resource.attributes)
        if routing:
            attributes[semconv.ROLLOUT_ID] = span.rollout_id
            attributes[semconv.ATTEMPT_ID] = span.attempt_id
        resource_key = (span.resource.schema_url, to_json(attributes, inf_nan_mode="strings"))
        group = resources.get(resource_key)
        if group is None:
            group = resources[resource_key] = request.resource_spans.add()
            group.schema_url = span.resource.schema_url
            _fill(group.resource.attributes, attributes)
        named = _scope(span)
        scope_key = (resource_key, *named)
        scope = scopes.get(scope_key)
        if scope is None:
            scope = scopes[scope_key] = group.scope_spans.add()
            scope.scope.name, scope.scope.version, scope.schema_url = named
        _encode(span, scope.spans.add(), numbered)
    return cast("ExportTraceServiceRequest", request)


def _scope(span: Span) -> tuple[str, str, str]:
    found = (span.model_extra or {}).get("instrumentation_scope")
    said: Mapping[str, Any] = cast("Any", found) if isinstance(found, Mapping) else {}
    name, version, schema_url = (
        utf8(str(said.get(key) or "")) for key in ("name", "version", "schema_url")
    )
    return name, version, schema_url


def _encode(span: Span, target: Any, numbered: bool) -> None:
    target.trace_id = _id(span.trace_id, 16)
    target.span_id = _id(span.span_id, 8)
    if span.parent_id:
        target.parent_span_id = _id(span.parent_id, 8)
    if span.context is not None and span.context.trace_state:
        pairs = span.context.trace_state.items()
        target.trace_state = ",".join(f"{key}={value}" for key, value in pairs)
    target.name = utf8(span.name)
    target.kind = _KINDS.get(str((span.model_extra or {}).get("kind")), _KINDS["INTERNAL"])
    start, end = _nanos(span.start_time), _nanos(span.end_time)
    target.start_time_unix_nano = start or end
    target.end_time_unix_nano = max(start, end)
    target.status.code = _STATUS_CODES[span.status.status_code]
    target.status.message = utf8(span.status.description or "")
    _fill(target.attributes, span.attributes)
    if numbered and semconv.SPAN_SEQUENCE_ID not in span.attributes:
        _fill(target.attributes, {semconv.SPAN_SEQUENCE_ID: span.sequence_id})
    for event in span.events:
        encoded = target.events.add()
        encoded.name = utf8(event.name)
        encoded.time_unix_nano = _nanos(event.timestamp) or start or end
        _fill(encoded.attributes, event.attributes)
    for link in span.links:
        _encode_link(link, target.links.add())


def _encode_link(link: Link, target: Any) -> None:
    target.trace_id = _id(link.context.trace_id, 16)
    target.span_id = _id(link.context.span_id, 8)
    _fill(target.attributes, link.attributes or {})


def _id(text: str, size: int) -> bytes:
    """Return the bytes of an id, or of its hash if it is not an OpenTelemetry id."""
    if len(text) == 2 * size and _HEX.issuperset(text):
        raw = bytes.fromhex(text)
        if any(raw):
            return raw
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).digest()


def _nanos(seconds: float | None) -> int:
    if seconds is None or not 0 < seconds < _MAX_SECONDS:  # false for NaN too
        return 0
    whole = int(seconds)  # two products: a single float product would be off by up to 128 ns
    return whole * _NANOS_PER_SECOND + round((seconds - whole) * _NANOS_PER_SECOND)


def _fill(pairs: Any, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        pair = pairs.add()
        pair.key = utf8(key)
        _set(pair.value, value)


def _set(target: Any, value: Any) -> None:
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        if value in _INT64:
            target.int_value = value
        else:
            target.string_value = str(value)
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, list):
        target.array_value.SetInParent()
        for item in cast("list[Any]", value):
            _set(target.array_value.values.add(), item)
    else:
        target.string_value = utf8(str(value))
