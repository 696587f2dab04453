"""Converts spans that adapters cannot read as they are: of the OpenTelemetry SDK, and of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from agl_adapters.foreign_spans import foreign_tool, with_conventions
from agl_core.types import Span, SpanLike


def as_spans(source: Sequence[SpanLike]) -> Sequence[Span]:
    """Return all spans as ours, with the attributes that adapters read.

    ``source`` itself is returned if no span needs to be converted.
    """
    if all(isinstance(span, Span) and foreign_tool(span.attributes) is None for span in source):
        return cast("Sequence[Span]", source)
    return [
        with_conventions(
            span
            if isinstance(span, Span)
            else Span.from_opentelemetry(span, "rollout-dummy", "attempt-dummy", index)
        )
        for index, span in enumerate(source)
    ]
