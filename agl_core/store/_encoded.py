"""Spans as bytes: encoded when they enter a store or when their bytes are first needed.

A span is written once and mostly read by other machines, so stores keep its JSON: the server stores
the bytes that it received and sends the bytes that it stored. A span that was added as an object in
this process is kept as an object, and encoded only when its bytes are needed. The fields that
stores index and sort by are attributes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from pydantic import TypeAdapter

from agl_core.errors import InvalidArgumentError
from agl_core.semconv import LATE, PRIMARY_REWARD_VALUE
from agl_core.types import Span, SpanContext, StatusCode
from agl_core.types._copying import construct, construct_span, copy_value

MAX_SPAN_ATTRIBUTES: Final = 65_536
"""Most attributes of a span and its resource together."""
MAX_SPAN_BYTES: Final = 64 * 2**20
"""Most bytes of a span as JSON."""

_span_list: Final[TypeAdapter[list[Span]]] = TypeAdapter(list[Span])
_to_json = Span.__pydantic_serializer__.to_json
_SCALARS: Final = frozenset({str, int, float, bool})
_KINDS: Final = _SCALARS | {list}
_IDS: Final = ("rollout_id", "attempt_id", "sequence_id", "trace_id", "span_id", "parent_id")
_FIELDS: Final = (*_IDS, "name", "start_time", "end_time")
_fields_of = attrgetter(*_FIELDS)
_copy_flat = dict[str, Any].copy


class SpanParts(NamedTuple):
    """The content of a plain span that stores do not read.

    Consists of far fewer objects than a :class:`Span`: less memory, and less work for the garbage
    collector. A span context is stored as the values of its fields, in order.
    """

    status_code: StatusCode
    description: str | None
    attributes: dict[str, Any]
    context: tuple[Any, ...] | None
    parent: tuple[Any, ...] | None
    resource_attributes: dict[str, Any]
    schema_url: str
    has_lists: bool
    """Whether an attribute is a list, which a copy must not share."""
    extra: Mapping[str, Any] | None = None
    """Keys of the span that are not fields: text, or mappings of text."""


class EncodedSpan:
    """A span's JSON and the fields that stores read.

    Immutable by convention: stores share instances instead of copying them.
    """

    __slots__ = ("_parts", "_payload", "has_reward", "reward", *_FIELDS)

    def __init__(
        self,
        rollout_id: str,
        attempt_id: str,
        sequence_id: int,
        trace_id: str,
        span_id: str,
        parent_id: str | None,
        name: str,
        start_time: float | None,
        end_time: float | None,
        payload: bytes | None,
        parts: SpanParts | None = None,
        has_reward: bool | None = None,
        reward: float | None = None,
    ) -> None:
        """Hold a span as bytes or, if ``payload`` is None, as the parts of an object.

        ``has_reward`` says whether it has a primary reward that counts; None means to search its
        bytes.
        ``reward`` is the finite one, if it is known.
        """
        self.has_reward = has_reward
        self.reward = reward
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.sequence_id = sequence_id
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.name = name
        self.start_time = start_time
        self.end_time = end_time
        self._payload = payload
        self._parts = parts

    @property
    def payload(self) -> bytes:
        """The whole span as UTF-8 JSON, as ``Span.model_dump_json`` writes it."""
        payload = self._payload
        if payload is None:
            payload = self._payload = _to_json(self.decode())
        return payload

    @property
    def parts(self) -> SpanParts | None:
        """The span's content if it is held as an object; not to be changed."""
        return self._parts

    def with_payload(self, payload: bytes) -> EncodedSpan:
        """Return this span with other JSON; the fields that stores read stay as they are."""
        if payload is self._payload:
            return self
        check_size(self.span_id, len(payload))
        fields = _fields_of(self)
        return EncodedSpan(*fields, payload=payload, has_reward=self.has_reward, reward=self.reward)

    def decode(self) -> Span:
        """Return a fresh :class:`Span` that shares nothing with this object."""
        parts = self._parts
        if parts is None:
            return Span.model_validate_json(self.payload)
        code, description, attributes, context, parent, resource, schema_url, has_lists, extra = (
            parts
        )
        copy = _copy_lists if has_lists else _copy_flat
        values: dict[str, Any] = {
            "rollout_id": self.rollout_id,
            "attempt_id": self.attempt_id,
            "sequence_id": self.sequence_id,
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "parent_id": self.parent_id,
            "name": self.name,
            "status": {"status_code": code, "description": description},
            "attributes": copy(attributes),
            "events": [],
            "links": [],
            "start_time": self.start_time,
            "end_time": self.end_time,
            "context": None if context is None else _context_of(*context),
            "parent": None if parent is None else _context_of(*parent),
            "resource": {"attributes": copy(resource), "schema_url": schema_url},
        }
        return construct_span(values, copy_value(extra) if extra else None)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, EncodedSpan):
            return NotImplemented
        return self.payload == other.payload

    def __hash__(self) -> int:
        return hash((self.rollout_id, self.attempt_id, self.span_id))

    def __repr__(self) -> str:
        ids = f"{self.rollout_id}/{self.attempt_id}/{self.span_id}"
        return f"EncodedSpan({ids} #{self.sequence_id} {self.name!r})"


class StoredSpan(EncodedSpan):
    """An encoded span that a store reads back: its JSON, without the other fields.

    A page of spans is mostly sent on or decoded as a whole. The fields are read from the JSON, all
    at once, when one is asked for. So a store needs to read one column of a span.

    Args:
        payload: The span as UTF-8 JSON.
    """

    __slots__ = ()

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._parts = self.has_reward = self.reward = None

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        for field, value in zip(_FIELDS, _fields_of(self.decode()), strict=True):
            setattr(self, field, value)
        return getattr(self, name)


def _copy_lists(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.copy() if type(value) is list else value  # pyright: ignore[reportUnknownMemberType]
        for key, value in attributes.items()
    }


def _context_of(trace_id: str, span_id: str, is_remote: bool, trace_state: Any) -> SpanContext:
    fields = {"trace_id": trace_id, "span_id": span_id, "is_remote": is_remote}
    return construct(SpanContext, {**fields, "trace_state": dict(trace_state)}, {})


def encode_span(span: Span) -> EncodedSpan:
    """Encode a span; the result shares no mutable state with it.

    Raises:
        InvalidArgumentError: The span has too many attributes or is too large.
        pydantic_core.PydanticSerializationError: An attribute has no JSON form.
    """
    return _wrap(span, _to_json(span), None)


def hold_span(span: Span) -> EncodedSpan:
    """Copy a span, to be encoded when its bytes are needed; the result shares no mutable state.

    Costs less than :func:`encode_span`, and reading the span back costs a copy. A span with events,
    links, nested values, or extra keys other than those of OpenTelemetry's SDK is encoded at once.

    Raises:
        InvalidArgumentError: The span has too many attributes.
        pydantic_core.PydanticSerializationError: An attribute has no JSON form.
    """
    if (
        type(span) is not Span
        or span.events
        or span.links
        or any(
            model is not None and model.__pydantic_extra__
            for model in (span.status, span.context, span.parent, span.resource)
        )
        or not _is_text(span.__pydantic_extra__)
    ):
        return encode_span(span)
    kinds = {*map(type, span.attributes.values()), *map(type, span.resource.attributes.values())}
    has_lists = list in kinds
    if not kinds <= _KINDS or (has_lists and not _lists_are_flat(span)):
        return encode_span(span)
    return _wrap(span, None, _parts_of(span, has_lists))


def _is_text(extra: dict[str, Any] | None) -> bool:
    """Return whether extra keys hold text or mappings of text, as those of SDK spans do."""
    for value in (extra or {}).values():
        parts = {value: ""} if type(value) is str else value
        if type(parts) is not dict:
            return False
        pairs = cast("dict[Any, Any]", parts)
        if not {*map(type, pairs), *map(type, pairs.values())} <= {str}:
            return False
    return True


def _lists_are_flat(span: Span) -> bool:
    values = (*span.attributes.values(), *span.resource.attributes.values())
    lists = [cast("list[Any]", value) for value in values if type(value) is list]
    return all(_SCALARS.issuperset(map(type, items)) for items in lists)


def _parts_of(span: Span, has_lists: bool) -> SpanParts:
    status, resource = span.status, span.resource
    copy = _copy_lists if has_lists else _copy_flat
    return SpanParts(
        status.status_code,
        status.description,
        copy(span.attributes),
        _context_values(span.context),
        _context_values(span.parent),
        copy(resource.attributes),
        resource.schema_url,
        has_lists,
        copy_value(span.__pydantic_extra__) or None,
    )


def _context_values(context: SpanContext | None) -> tuple[Any, ...] | None:
    if context is None:
        return None
    state = tuple(context.trace_state.items())
    return (context.trace_id, context.span_id, context.is_remote, state)


def check_size(span_id: str, size: int) -> None:
    """Raise InvalidArgumentError if a span of ``size`` bytes is too large."""
    if size > MAX_SPAN_BYTES:
        raise InvalidArgumentError(
            f"span {span_id:.100} takes {size} bytes; a span may take {MAX_SPAN_BYTES}"
        )


def _wrap(span: Span, payload: bytes | None, parts: SpanParts | None) -> EncodedSpan:
    count = len(span.attributes) + len(span.resource.attributes)
    if count > MAX_SPAN_ATTRIBUTES:
        raise InvalidArgumentError(
            f"span {span.span_id:.100} has {count} attributes; a span may have "
            f"{MAX_SPAN_ATTRIBUTES}. One attribute may hold many values, as JSON text"
        )
    if payload is not None:
        check_size(span.span_id, len(payload))
    value: Any = span.attributes.get(PRIMARY_REWARD_VALUE)
    if value is not None and span.attributes.get(LATE):
        value = None
    return EncodedSpan(
        *_fields_of(span),
        payload=payload,
        parts=parts,
        has_reward=value is not None,
        reward=None if value is None else finite_number(value),
    )


def finite_number(value: Any) -> float | None:
    """Return a finite number as a float, and None for anything else."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def decode_spans(spans: Iterable[EncodedSpan]) -> Sequence[Span]:
    """Decode many spans; one pass of the parser decodes all those held as bytes."""
    spans = list(spans)
    if all(span.parts is None for span in spans):
        return _span_list.validate_json(b"[" + b",".join(span.payload for span in spans) + b"]")
    return [span.decode() for span in spans]
