"""Making a span the current one between two callbacks.

Frameworks tell of the start and the end of something in two calls, not around a block, and not
always in one task: LangChain starts a run in the agent's task and ends it in another. Then the
span that has ended stays the current one where it started, and :func:`live_context` is what is
around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from opentelemetry import context as otel_context
from opentelemetry import trace

__all__ = ["EnteredSpan", "enter_span", "live_context"]

_KEY: Final = otel_context.create_key("agl-entered-spans")


@dataclass(frozen=True, slots=True, eq=False)
class EnteredSpan:
    """A span that was made current, and the context to go back to."""

    span: trace.Span
    outer: otel_context.Context

    def leave(self) -> None:
        """Go back, if this runs where the span is current or something within it still is."""
        if self in _entered(otel_context.get_current()):
            otel_context.attach(self.outer)


def enter_span(span: trace.Span) -> EnteredSpan:
    """Make a span the current one of the running context."""
    outer = live_context()
    entered = EnteredSpan(span, outer)
    inner = otel_context.set_value(_KEY, (*_entered(outer), entered), outer)
    otel_context.attach(trace.set_span_in_context(span, inner))
    return entered


def live_context() -> otel_context.Context:
    """Return the running context without those spans that were entered here and ended elsewhere."""
    context = otel_context.get_current()
    while entered := _entered(context):
        current = trace.get_current_span(context)
        if current is not entered[-1].span or current.is_recording():
            break
        context = entered[-1].outer
    return context


def _entered(context: otel_context.Context) -> tuple[EnteredSpan, ...]:
    return cast("tuple[EnteredSpan, ...]", otel_context.get_value(_KEY, context) or ())
