"""Spans of an export request as the spans that a store keeps.

A resource is encoded once for all its spans. A span goes straight from protobuf to the JSON that is
stored: there is no model in between, and string attributes are never decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from pydantic_core import to_json

from agl_core import semconv
from agl_core.store import EncodedSpan
from agl_store_http.server.otlp.decoding import OTLPError
from agl_store_http.server.otlp.wire import read_attributes

__all__ = ["PendingSpan", "encode_spans", "pending_spans"]

_STATUS_CODES: Final = ("UNSET", "OK", "ERROR")  # by number, opentelemetry.proto.trace.v1.Status
_NANOS_PER_SECOND: Final = 1_000_000_000  # an int: dividing ints rounds once
_MAX_SEQUENCE_ID: Final = 2**63 - 1
_ROLLOUT_ID: Final = semconv.ROLLOUT_ID.encode()
_ATTEMPT_ID: Final = semconv.ATTEMPT_ID.encode()
_SEQUENCE_ID: Final = semconv.SPAN_SEQUENCE_ID.encode()


class PendingSpan(NamedTuple):
    """A span that knows its attempt, and maybe its place in the rollout."""

    rollout_id: str
    attempt_id: str
    sequence_id: int | None
    span: Any
    attributes: dict[bytes, Any]
    resource_json: bytes


def pending_spans(
    request: Any, rollout_id: str | None, attempt_id: str | None
) -> tuple[list[PendingSpan], int]:
    """Find out which attempt each span belongs to.

    The span's own attributes say so, or its resource's, or else the caller's token.

    Args:
        request: The export request, a :data:`~agl_store_http.server.otlp.wire.TraceRequest`.
        rollout_id: Rollout of spans that name none.
        attempt_id: Attempt of spans that name none.

    Returns:
        The spans in payload order, and how many name no attempt.

    Raises:
        OTLPError: An attribute is malformed.
    """
    try:
        return _pending_spans(request, rollout_id, attempt_id)
    except (DecodeError, ValueError) as error:
        raise OTLPError(f"an attribute is malformed: {error}") from error


def _pending_spans(
    request: Any, rollout_id: str | None, attempt_id: str | None
) -> tuple[list[PendingSpan], int]:
    found: list[PendingSpan] = []
    homeless = 0
    for group in request.resource_spans:
        shared = read_attributes(group.resource.attributes)
        resource_json = to_json(
            {"attributes": shared, "schema_url": group.schema_url}, inf_nan_mode="strings"
        )
        shared_rollout = shared.get(_ROLLOUT_ID, rollout_id)
        shared_attempt = shared.get(_ATTEMPT_ID, attempt_id)
        shared_sequence = shared.get(_SEQUENCE_ID)
        for scope in group.scope_spans:
            for span in scope.spans:
                attributes = read_attributes(span.attributes)
                of_rollout = attributes.get(_ROLLOUT_ID, shared_rollout)
                of_attempt = attributes.get(_ATTEMPT_ID, shared_attempt)
                if of_rollout is None or of_attempt is None:
                    homeless += 1
                    continue
                sequence = attributes.get(_SEQUENCE_ID, shared_sequence)
                found.append(
                    PendingSpan(
                        _text(of_rollout),
                        _text(of_attempt),
                        None if sequence is None else _sequence_id(sequence),
                        span,
                        attributes,
                        resource_json,
                    )
                )
    return found, homeless


def encode_spans(pending: Iterable[PendingSpan], sequence_ids: Sequence[int]) -> list[EncodedSpan]:
    """Encode spans as :meth:`Span.model_dump_json` would.

    Args:
        pending: The spans.
        sequence_ids: For those without one, in order.

    Raises:
        OTLPError: A string is not UTF-8.
    """
    drawn = iter(sequence_ids)
    try:
        return [
            _encode(item, next(drawn) if item.sequence_id is None else item.sequence_id)
            for item in pending
        ]
    except ValueError as error:  # pydantic's serialization error is one
        raise OTLPError(f"a span cannot be written as JSON: {error}") from error


def _encode(item: PendingSpan, sequence_id: int) -> EncodedSpan:
    span = item.span
    trace_id = _hex_id(span.trace_id, 32)
    span_id = _hex_id(span.span_id, 16)
    parent: bytes = span.parent_span_id
    parent_id = _hex_id(parent, 16) if parent else None
    name: str = span.name
    start_time = _seconds(span.start_time_unix_nano)
    end_time = _seconds(span.end_time_unix_nano)
    status = span.status
    code: int = status.code
    head = to_json(
        {
            "rollout_id": item.rollout_id,
            "attempt_id": item.attempt_id,
            "sequence_id": sequence_id,
            "trace_id": trace_id,
            "span_id": span_id,
            "parent_id": parent_id,
            "name": name,
            "status": {
                "status_code": _STATUS_CODES[code] if 0 <= code <= 2 else "UNSET",
                "description": status.message or None,
            },
            "attributes": item.attributes,
            "events": [_event(event) for event in span.events] if span.events else [],
            "links": [_link(link) for link in span.links] if span.links else [],
            "start_time": start_time,
            "end_time": end_time,
            "context": _context(trace_id, span_id),
            "parent": None,
        },
        inf_nan_mode="strings",
    )
    return EncodedSpan(
        item.rollout_id,
        item.attempt_id,
        sequence_id,
        trace_id,
        span_id,
        parent_id,
        name,
        start_time,
        end_time,
        b'%b,"resource":%b}' % (head[:-1], item.resource_json),
    )


def _event(event: Any) -> dict[str, Any]:
    return {
        "name": event.name,
        "attributes": read_attributes(event.attributes),
        "timestamp": _seconds(event.time_unix_nano),
    }


def _link(link: Any) -> dict[str, Any]:
    return {
        "context": _context(_hex_id(link.trace_id, 32), _hex_id(link.span_id, 16)),
        "attributes": read_attributes(link.attributes) or None,
    }


def _context(trace_id: str, span_id: str) -> dict[str, Any]:
    return {"trace_id": trace_id, "span_id": span_id, "is_remote": False, "trace_state": {}}


def _hex_id(raw: bytes, digits: int) -> str:
    return raw.hex().rjust(digits, "0")


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds / _NANOS_PER_SECOND if nanoseconds else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _sequence_id(value: Any) -> int | None:
    """Return the sequence id that an attribute gives; None if it cannot be one."""
    if isinstance(value, (str, bytes, int)) and not isinstance(value, bool):
        text = _text(value)
        if text.isascii() and text.isdecimal() and len(text) <= 19:
            number = int(text)
            return number if number <= _MAX_SEQUENCE_ID else None
    return None
