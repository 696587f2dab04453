from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agl_core.types import Span
from agl_tracer_otel import OtelTracer


class Recorder:
    """Reads the spans of a trace that is open during the test."""

    def __init__(self, tracer: OtelTracer) -> None:
        self._tracer = tracer

    @property
    def spans(self) -> list[Span]:
        return self._tracer.get_last_trace()

    @property
    def span(self) -> Span:
        (span,) = self.spans
        return span


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    tracer = OtelTracer()
    with tracer.lifespan():
        async with tracer.trace_context():
            yield Recorder(tracer)
