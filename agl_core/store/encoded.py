"""Spans as bytes: encoded when they enter a store or at the first time that bytes are needed.

A span is written once and mostly read by other machines, so stores keep it as the JSON that it
travels as: the server stores what it received and sends what it stored. A span that was added as an
object in this process is kept as an object, and encoded only if somebody asks for its bytes. The
fields that stores index and sort by are attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from agl_core.types import Span
from agl_core.types._copying import copy_plain_span, is_plain_span

__all__ = ["EncodedSpan", "decode_spans", "encode_span", "hold_span"]

_span_list: Final[TypeAdapter[list[Span]]] = TypeAdapter(list[Span])
_to_json = Span.__pydantic_serializer__.to_json


class EncodedSpan:
    """A span's JSON and the fields that stores look at.

    Immutable by convention: stores share instances instead of copying them.
    """

    __slots__ = (
        "_payload",
        "_span",
        "attempt_id",
        "end_time",
        "name",
        "parent_id",
        "rollout_id",
        "sequence_id",
        "span_id",
        "start_time",
        "trace_id",
    )

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
        span: Span | None = None,
    ) -> None:
        """Hold a span; ``payload`` may be None if ``span`` is a plain span that nobody changes."""
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
        self._span = span

    @property
    def payload(self) -> bytes:
        """The whole span as UTF-8 JSON, as ``Span.model_dump_json`` writes it."""
        payload = self._payload
        if payload is None:
            assert self._span is not None
            payload = self._payload = _to_json(self._span)
        return payload

    @property
    def model(self) -> Span | None:
        """The span as an object, if it is held as one; not to be changed."""
        return self._span

    def decode(self) -> Span:
        """Return a fresh :class:`Span` that shares nothing with this object."""
        if self._span is not None:
            return copy_plain_span(self._span)
        return Span.model_validate_json(self.payload)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, EncodedSpan):
            return NotImplemented
        return self.payload == other.payload

    def __hash__(self) -> int:
        return hash((self.rollout_id, self.attempt_id, self.span_id))

    def __repr__(self) -> str:
        return (
            f"EncodedSpan({self.rollout_id}/{self.attempt_id}/{self.span_id} "
            f"#{self.sequence_id} {self.name!r})"
        )


def encode_span(span: Span) -> EncodedSpan:
    """Encode a span; the result shares no mutable state with it.

    Raises:
        pydantic_core.PydanticSerializationError: An attribute has no JSON form.
    """
    return _wrap(span, _to_json(span), None)


def hold_span(span: Span) -> EncodedSpan:
    """Copy a span, to be encoded when its bytes are asked for.

    Costs less than :func:`encode_span`, and reading the span back costs a copy. A span that is not
    plain (:func:`agl_core.types._copying.is_plain_span`) is encoded at once.

    Raises:
        pydantic_core.PydanticSerializationError: An attribute has no JSON form.
    """
    if not is_plain_span(span):
        return encode_span(span)
    return _wrap(span, None, copy_plain_span(span))


def _wrap(span: Span, payload: bytes | None, held: Span | None) -> EncodedSpan:
    return EncodedSpan(
        span.rollout_id,
        span.attempt_id,
        span.sequence_id,
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.start_time,
        span.end_time,
        payload,
        held,
    )


def decode_spans(spans: Iterable[EncodedSpan]) -> Sequence[Span]:
    """Decode many spans; those held as bytes in one pass of the parser."""
    spans = list(spans)
    if all(span.model is None for span in spans):
        return _span_list.validate_json(b"[" + b",".join(span.payload for span in spans) + b"]")
    return [span.decode() for span in spans]
