"""Spans of an export request as the spans that a store keeps.

A resource is encoded once for all its spans. A span goes straight from protobuf to the JSON that is
stored: there is no model in between, and string attributes are never decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from pydantic_core import to_json

from agl_core import semconv
from agl_core.store import MAX_SPAN_ATTRIBUTES, EncodedSpan, finite_number
from agl_store_http.server.otlp.decoding import OTLPError
from agl_store_http.server.otlp.lists import FlatList, NestedValues, TooManyValues
from agl_store_http.server.otlp.wire import read_attributes
from agl_store_kit import Pauses, in_slices

__all__ = ["PendingSpan", "encode_spans", "pending_spans"]

_STATUS_CODES: Final = ("UNSET", "OK", "ERROR")  # by number, opentelemetry.proto.trace.v1.Status
_NANOS_PER_SECOND: Final = 1_000_000_000  # an int: dividing ints rounds once
_MAX_SEQUENCE_ID: Final = 2**63 - 1
"""The largest integer of the databases."""
_FREE_BYTES: Final = 16 * 1024 * 1024
"""JSON that the spans of a request may take, whatever its size, and per byte of it beyond."""
_MAX_RATIO: Final = 2
"""The copies of resources may take the free bytes and this multiple of the request's size."""
_to_json: Final = partial(to_json, inf_nan_mode="strings")
"""Writes values as models do: NaN and infinities are strings."""
_MANY_ATTRIBUTES: Final = 1_000
"""Attributes that are read at a stretch, in a few milliseconds."""
_TOO_MANY: Final = f"have more than {MAX_SPAN_ATTRIBUTES} attributes, events or links"


class PendingSpan(NamedTuple):
    """A span that knows its attempt, and maybe its place in the rollout."""

    rollout_id: str
    attempt_id: str
    sequence_id: int | None
    span: Any
    attributes: dict[str, Any]
    events: Sequence[dict[str, Any]]
    links: Sequence[dict[str, Any]]
    resource_json: bytes


async def pending_spans(
    request: Any, rollout_id: str | None, attempt_id: str | None, size: int
) -> tuple[list[PendingSpan], Counter[str]]:
    """Find out which attempt each span belongs to.

    The span's own attributes say so, or its resource's, or else the caller's token.

    Args:
        request: The export request, a :data:`~agl_store_http.server.otlp.wire.TraceRequest`.
        rollout_id: Rollout of spans that name none.
        attempt_id: Attempt of spans that name none.
        size: Bytes of the request.

    Returns:
        The spans in payload order, and how many are rejected for which reason.

    Raises:
        OTLPError: An attribute is malformed, or the request becomes far larger when the resource is
            written with each span.
    """
    try:
        free_bytes = _FREE_BYTES + _MAX_RATIO * size
        return await _pending_spans(request, rollout_id, attempt_id, free_bytes)
    except TooManyValues as error:
        raise OTLPError(f"{error}; send fewer spans at a time", status=413) from error
    except (DecodeError, ValueError) as error:
        raise OTLPError(f"an attribute is malformed: {error}") from error


async def _pending_spans(
    request: Any, rollout_id: str | None, attempt_id: str | None, free_bytes: int
) -> tuple[list[PendingSpan], Counter[str]]:
    found: list[PendingSpan] = []
    rejected: Counter[str] = Counter()
    nested, pauses = NestedValues(), Pauses()
    for group in request.resource_spans:
        if len(group.resource.attributes) > MAX_SPAN_ATTRIBUTES:
            rejected[_TOO_MANY] += sum(len(scope.spans) for scope in group.scope_spans)
            continue
        shared = read_attributes(group.resource.attributes, nested)
        resource_json = _to_json({"attributes": shared, "schema_url": group.schema_url})
        shared_rollout = shared.get(semconv.ROLLOUT_ID, rollout_id)
        shared_attempt = shared.get(semconv.ATTEMPT_ID, attempt_id)
        shared_sequence = shared.get(semconv.SPAN_SEQUENCE_ID)
        for scope in group.scope_spans:
            for span in scope.spans:
                if pauses.due:
                    await pauses.take()
                pairs, events, links = span.attributes[:], span.events, span.links
                longest = max(len(pairs), len(events), len(links))
                if longest + len(shared) > MAX_SPAN_ATTRIBUTES:
                    rejected[_TOO_MANY] += 1
                    continue
                if len(pairs) <= _MANY_ATTRIBUTES:
                    attributes = read_attributes(pairs, nested, flat_lists=True)
                else:
                    attributes = await _read_many(pairs, nested, pauses)
                of_rollout = attributes.get(semconv.ROLLOUT_ID, shared_rollout)
                of_attempt = attributes.get(semconv.ATTEMPT_ID, shared_attempt)
                if of_rollout is None or of_attempt is None:
                    rejected["name no rollout and attempt"] += 1
                    continue
                free_bytes -= len(resource_json)
                if free_bytes < 0:
                    raise OTLPError(
                        "the resource is stored with each span, which makes this request too "
                        "large; send fewer spans at a time",
                        status=413,
                    )
                sequence = attributes.get(semconv.SPAN_SEQUENCE_ID, shared_sequence)
                found.append(
                    PendingSpan(
                        _text(of_rollout),
                        _text(of_attempt),
                        None if sequence is None else _sequence_id(sequence),
                        span,
                        attributes,
                        await _all(_event, events, nested) if events else (),
                        await _all(_link, links, nested) if links else (),
                        resource_json,
                    )
                )
    return found, rejected


async def _read_many(
    pairs: Sequence[bytes], nested: NestedValues, pauses: Pauses
) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for at in range(0, len(pairs), _MANY_ATTRIBUTES):
        part = pairs[at : at + _MANY_ATTRIBUTES]
        attributes |= read_attributes(part, nested, flat_lists=True)
        await pauses.take()
    return attributes


async def _all(
    read: Callable[[Any, NestedValues], dict[str, Any]], items: Sequence[Any], nested: NestedValues
) -> list[dict[str, Any]]:
    return await in_slices(lambda part: [read(each, nested) for each in part], items)


async def encode_spans(
    pending: Iterable[PendingSpan], sequence_ids: Sequence[int]
) -> list[EncodedSpan]:
    """Encode spans as :meth:`Span.model_dump_json` would.

    Args:
        pending: The spans.
        sequence_ids: For those without one, in order.

    Raises:
        OTLPError: A string is not UTF-8.
    """
    drawn = iter(sequence_ids)
    quoted, pauses = _Quoted(), Pauses()
    encoded: list[EncodedSpan] = []
    try:
        for item in pending:
            sequence_id = next(drawn) if item.sequence_id is None else item.sequence_id
            flat_lists = await _take_flat_lists(item.attributes, pauses)
            encoded.append(_encode(item, sequence_id, quoted, flat_lists))
            if pauses.due:
                await pauses.take()
    except ValueError as error:  # pydantic's serialization error is one
        raise OTLPError(f"a span cannot be written as JSON: {error}") from error
    return encoded


async def _take_flat_lists(attributes: dict[str, Any], pauses: Pauses) -> bytes:
    """Remove flat lists from attributes; return them as the rest of the attributes' JSON."""
    names = [name for name, value in attributes.items() if type(value) is FlatList]
    parts: list[bytes] = []
    for name in names:
        parts += [b",", to_json(name), b":", await attributes.pop(name).to_json(pauses)]
    return b"".join(parts) if attributes else b"".join(parts[1:])


class _Quoted(dict[str, str]):
    """Texts as JSON. The spans of a request share their ids, and often their names."""

    def __missing__(self, text: str) -> str:
        quoted = self[text] = to_json(text).decode()
        return quoted


def _encode(item: PendingSpan, sequence_id: int, quoted: _Quoted, flat_lists: bytes) -> EncodedSpan:
    span = item.span
    trace_id = _hex_id(span.trace_id, 32)
    span_id = _hex_id(span.span_id, 16)
    parent: bytes = span.parent_span_id
    parent_id = _hex_id(parent, 16) if parent else None
    parent_json = f'"{parent_id}"' if parent_id else "null"
    name: str = span.name
    start_time = _seconds(span.start_time_unix_nano)
    end_time = _seconds(span.end_time_unix_nano)
    status = span.status
    code: int = status.code
    status_code = _STATUS_CODES[code] if 0 <= code <= 2 else "UNSET"
    description = quoted[status.message] if status.message else "null"
    # A dict of all fields would take longer to make than its text.
    head = (
        f'{{"rollout_id":{quoted[item.rollout_id]},"attempt_id":{quoted[item.attempt_id]},'
        f'"sequence_id":{sequence_id},"trace_id":"{trace_id}","span_id":"{span_id}",'
        f'"parent_id":{parent_json},"name":{quoted[name]},'
        f'"status":{{"status_code":"{status_code}","description":{description}}},"attributes":'
    )
    tail = (
        f',"context":{{"trace_id":"{trace_id}","span_id":"{span_id}","is_remote":false,'
        '"trace_state":{}},"parent":null,"resource":'
    )
    payload = b"".join(
        (
            head.encode(),
            _to_json(item.attributes)[:-1],
            flat_lists,
            b'},"events":',
            _to_json(item.events) if item.events else b"[]",
            b',"links":',
            _to_json(item.links) if item.links else b"[]",
            b",",
            to_json({"start_time": start_time, "end_time": end_time})[1:-1],
            tail.encode(),
            item.resource_json,
            b"}",
        )
    )
    reward = item.attributes.get(semconv.PRIMARY_REWARD_VALUE)
    if item.attributes.get(semconv.LATE):
        reward = None
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
        payload,
        has_reward=reward is not None,
        reward=finite_number(reward),
    )


def _event(event: Any, nested: NestedValues) -> dict[str, Any]:
    return {
        "name": event.name,
        "attributes": read_attributes(event.attributes, nested),
        "timestamp": _seconds(event.time_unix_nano),
    }


def _link(link: Any, nested: NestedValues) -> dict[str, Any]:
    return {
        "context": _context(_hex_id(link.trace_id, 32), _hex_id(link.span_id, 16)),
        "attributes": read_attributes(link.attributes, nested) or None,
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
