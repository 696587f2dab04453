"""Spans as bytes: encoded once when they enter a store, decoded only where a model is asked for.

A span is written once and read by machines far more often than by Python code, so stores keep it as
the JSON it travels as: the server stores what it parsed and sends what it stored, without building
or walking a model. The fields that stores index and sort by stand beside the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from agl_core.types import Span

__all__ = ["EncodedSpan", "decode_spans", "encode_span"]

_span_list: Final[TypeAdapter[list[Span]]] = TypeAdapter(list[Span])
_to_json = Span.__pydantic_serializer__.to_json


class EncodedSpan:
    """A span's JSON and the fields that stores look at.

    Immutable by convention: stores share instances instead of copying them.

    Attributes:
        payload: The whole span as UTF-8 JSON, as ``Span.model_dump_json`` writes it.
    """

    __slots__ = (
        "attempt_id",
        "end_time",
        "name",
        "parent_id",
        "payload",
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
        payload: bytes,
    ) -> None:
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.sequence_id = sequence_id
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.name = name
        self.start_time = start_time
        self.end_time = end_time
        self.payload = payload

    def decode(self) -> Span:
        """Return a fresh :class:`Span` that shares nothing with this object."""
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
            f"#{self.sequence_id} {self.name!r}, {len(self.payload)} bytes)"
        )


def encode_span(span: Span) -> EncodedSpan:
    """Encode a span; the result shares no mutable state with it.

    Raises:
        pydantic_core.PydanticSerializationError: An attribute has no JSON form.
    """
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
        _to_json(span),
    )


def decode_spans(spans: Iterable[EncodedSpan]) -> Sequence[Span]:
    """Decode many spans in one pass of the parser."""
    return _span_list.validate_json(b"[" + b",".join(span.payload for span in spans) + b"]")
