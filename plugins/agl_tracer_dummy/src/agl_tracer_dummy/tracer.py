"""A tracer without a backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agl_core.tracer import UnsentSpans
from agl_core.types import Span, SpanCoreFields

if TYPE_CHECKING:
    from agl_core.store import LightningStore


@dataclass(slots=True)
class _Trace:
    tracer: DummyTracer
    rollout_id: str | None
    attempt_id: str | None
    spans: list[Span] = field(default_factory=list[Span])
    closed: bool = False


_trace: ContextVar[_Trace | None] = ContextVar("agl_dummy_trace", default=None)


class DummyTracer(UnsentSpans):
    """Creates spans and does not send them; the spans of a trace can be read until the next one.

    For agents that run untraced: their returned reward is stored, the values that they emit are
    not. Spans have no parents.
    """

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncGenerator[DummyTracer]:
        outer = _trace.get()
        trace = _Trace(self, rollout_id, attempt_id)
        _trace.set(trace)
        try:
            async with super().trace_context(name):
                yield self
        finally:
            trace.closed = True
            if outer is not None and not outer.closed:
                _trace.set(outer)

    def get_last_trace(self) -> list[Span]:
        trace = _trace.get()
        return [] if trace is None else list(trace.spans)

    def keep(self, core: SpanCoreFields) -> None:
        trace = _trace.get()
        if trace is None or trace.closed or trace.tracer is not self:
            return
        trace.spans.append(
            Span.from_core_fields(
                core,
                rollout_id=trace.rollout_id,
                attempt_id=trace.attempt_id,
                sequence_id=len(trace.spans),
            )
        )
