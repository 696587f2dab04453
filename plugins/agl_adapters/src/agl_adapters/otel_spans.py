"""Converts spans of the OpenTelemetry SDK, which the adapters also accept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from agl_core.types import Span, SpanLike


def as_spans(source: Sequence[SpanLike]) -> Sequence[Span]:
    """Convert the OpenTelemetry spans in ``source``; return ``source`` itself if it has none."""
    if all(isinstance(span, Span) for span in source):
        return cast("Sequence[Span]", source)
    return [
        span
        if isinstance(span, Span)
        else Span.from_opentelemetry(span, "rollout-dummy", "attempt-dummy", index)
        for index, span in enumerate(source)
    ]
