"""Creates spans without a backend, for emitters that are told not to send what they make."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from agl_core.errors import error_message
from agl_core.otel._attributes import format_exception_attributes, sanitize_attributes
from agl_core.tracer._active import activate
from agl_core.tracer._base import Tracer
from agl_core.types import (
    AttributeValue,
    Span,
    SpanCoreFields,
    SpanRecordingContext,
    StatusCode,
    TraceStatus,
)

if TYPE_CHECKING:
    from agl_core.store import LightningStore


class UnsentSpans(Tracer):
    """Creates spans and sends them nowhere. Spans have no parents."""

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncGenerator[UnsentSpans]:
        with activate(self):
            yield self

    def get_last_trace(self) -> list[Span]:
        """Return nothing: no span is kept."""
        return []

    def keep(self, core: SpanCoreFields) -> None:
        """Take a span that has ended; for subclasses that keep spans."""

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """See :meth:`Tracer.create_span`; the status defaults to ``OK``."""
        moment = time.time() if timestamp is None else timestamp
        core = _core_fields(name, attributes, moment, status)
        core.end_time = moment
        self.keep(core)
        return core

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Generator[SpanRecordingContext]:
        """See :meth:`Tracer.operation_context`; the status defaults to ``OK``."""
        start = time.time() if start_time is None else start_time
        core = _core_fields(name, attributes, start, None)
        recorder = _UnsentSpan(core)
        try:
            yield recorder
        except BaseException as error:
            recorder.record_exception(error)
            raise
        finally:
            core.end_time = time.time() if end_time is None else end_time
            self.keep(core)


def _core_fields(
    name: str,
    attributes: Mapping[str, AttributeValue] | None,
    start_time: float,
    status: TraceStatus | None,
) -> SpanCoreFields:
    return SpanCoreFields.model_construct(
        name=name,
        status=status or TraceStatus(status_code="OK"),
        attributes=sanitize_attributes(attributes or {}),
        start_time=start_time,
        end_time=None,
    )


class _UnsentSpan(SpanRecordingContext):
    """Writes to the fields of a span."""

    def __init__(self, span: SpanCoreFields) -> None:
        self._span = span

    def record_exception(self, exception: BaseException) -> None:
        self._span.attributes.update(format_exception_attributes(exception))
        self.record_status("ERROR", error_message(exception))

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._span.attributes.update(sanitize_attributes(attributes))

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        self._span.status = TraceStatus(status_code=status_code, description=description)

    def get_recorded_span(self) -> SpanCoreFields:
        return self._span.model_copy(deep=True)
