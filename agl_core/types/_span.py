"""Spans: the recorded operations of an attempt.

The models mirror OpenTelemetry's, with times in seconds instead of nanoseconds and with the three
keys that assign a span to its attempt. :mod:`agl_core.otel._convert` converts SDK objects, so that
this module does not import OpenTelemetry.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, runtime_checkable

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)

from agl_core import semconv
from agl_core.ids import new_span_id, new_trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _to_float(value: Any) -> Any:
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


AttributeValue = Annotated[
    StrictStr
    | StrictBool
    | StrictInt
    | StrictFloat
    | Annotated[list[StrictStr], Field(fail_fast=True)]
    | Annotated[list[StrictBool], Field(fail_fast=True)]
    | Annotated[list[StrictInt], Field(fail_fast=True)]
    | Annotated[list[StrictFloat], Field(fail_fast=True)]
    # A list of floats whose NaN or infinity became a string when it was written as JSON.
    | Annotated[list[Annotated[StrictFloat, BeforeValidator(_to_float)]], Field(fail_fast=True)],
    # Strict types exclude each other, so at most one fits. Trying all of them on every value would
    # take most of the time of parsing a span.
    Field(union_mode="left_to_right"),
]
"""A primitive, or a homogeneous sequence of one primitive type."""
Attributes = dict[str, AttributeValue]
TraceState = dict[str, str]
StatusCode = Literal["UNSET", "OK", "ERROR"]

# NaN and infinities, which are not JSON numbers, are written as strings, as in OTLP/JSON.
_OPEN = ConfigDict(extra="allow", ser_json_inf_nan="strings")


class SpanContext(BaseModel):
    """Identity of a span across process borders."""

    model_config = _OPEN

    trace_id: str
    span_id: str
    is_remote: bool
    trace_state: TraceState


class TraceStatus(BaseModel):
    """Outcome of a span."""

    model_config = _OPEN

    status_code: StatusCode
    description: str | None = None


class Event(BaseModel):
    """Something that happened at one moment within a span."""

    model_config = _OPEN

    name: str
    attributes: Attributes
    timestamp: float | None = None


class Link(BaseModel):
    """A pointer from one span to another."""

    model_config = _OPEN

    context: SpanContext
    attributes: Attributes | None = None


class OtelResource(BaseModel):
    """The entity that produced the span; not a tunable :class:`~agl_core.types.Resource`."""

    attributes: Attributes
    schema_url: str


class SpanCoreFields(BaseModel):
    """A span without an attempt, as emitters return it."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    name: str
    status: TraceStatus
    attributes: Attributes
    start_time: float | None
    end_time: float | None


class Span(BaseModel):
    """One operation of an attempt: a model call, a tool call, a reward.

    The primary key is ``(rollout_id, attempt_id, span_id)``. ``sequence_id`` orders the spans of a
    rollout; several spans may share one.
    """

    model_config = _OPEN

    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    status: TraceStatus
    attributes: Attributes
    events: list[Event]
    links: list[Link]
    start_time: float | None
    end_time: float | None
    context: SpanContext | None
    parent: SpanContext | None
    resource: OtelResource

    @classmethod
    def from_opentelemetry(
        cls, src: ReadableSpan, rollout_id: str, attempt_id: str, sequence_id: int
    ) -> Span:
        """Convert a span of the OpenTelemetry SDK; see :func:`agl_core.otel._convert.to_span`."""
        # A method since version 0.3; the import upwards is one of two that the layers allow.
        from agl_core.otel._convert import to_span

        return to_span(src, rollout_id, attempt_id, sequence_id)

    @classmethod
    def from_attributes(
        cls,
        *,
        attributes: Mapping[str, AttributeValue],
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
        name: str | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        resource: OtelResource | None = None,
        status: TraceStatus | None = None,
    ) -> Span:
        """Create a span from attributes; all other fields have defaults.

        By default, trace and span ids are random, the status is ``OK``, the name is
        ``agentlightning.virtual``, the rollout and attempt ids are empty strings, and the sequence
        id is 0.
        """
        trace_id = trace_id or new_trace_id()
        span_id = span_id or new_span_id()
        return cls(
            rollout_id=rollout_id or "",
            attempt_id=attempt_id or "",
            sequence_id=sequence_id or 0,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name=name or semconv.SPAN_VIRTUAL,
            status=status or TraceStatus(status_code="OK"),
            attributes=dict(attributes),
            events=[],
            links=[],
            start_time=start_time,
            end_time=end_time,
            context=_local_context(trace_id, span_id),
            parent=_local_context(trace_id, parent_id) if parent_id else None,
            resource=resource or OtelResource(attributes={}, schema_url=""),
        )

    @classmethod
    def from_core_fields(
        cls,
        core: SpanCoreFields,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
    ) -> Span:
        """Create a span of an attempt from core fields; a missing start time becomes now."""
        return cls.from_attributes(
            attributes=core.attributes,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            name=core.name,
            start_time=time.time() if core.start_time is None else core.start_time,
            end_time=core.end_time,
            status=core.status,
        )


def _local_context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(trace_id=trace_id, span_id=span_id, is_remote=False, trace_state={})


@runtime_checkable
class SpanRecordingContext(Protocol):
    """An open span to which the code inside it may write; the code that opened it closes it."""

    def record_exception(self, exception: BaseException) -> None:
        """Add the exception's attributes and set the status to ``ERROR``."""
        ...

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Merge attributes into the span."""
        ...

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        """Set the span's status."""
        ...

    def get_recorded_span(self) -> SpanCoreFields:
        """Return the span as recorded so far; final once its context has closed."""
        ...


if TYPE_CHECKING:
    SpanLike = ReadableSpan | Span
    """An OpenTelemetry SDK span or a :class:`Span`."""
else:
    SpanLike = Any  # naming ReadableSpan at run time would import the SDK
