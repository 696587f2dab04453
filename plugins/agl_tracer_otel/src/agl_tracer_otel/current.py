"""Makes a span the current one between two callbacks.

Frameworks report the start and the end of a step in two calls, not around a block, and not always
in one task: LangChain starts a run in the agent's task and ends it in another. Then the ended span
is still the current one in the task where it started; :func:`live_context` returns the context
around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from opentelemetry import context as otel_context, trace

_KEY: Final = otel_context.create_key("agl-entered-spans")


@dataclass(frozen=True, slots=True, eq=False)
class EnteredSpan:
    """A span that was made current, and the context to restore after it."""

    span: trace.Span
    outer: otel_context.Context

    def leave(self) -> None:
        """Restore the outer context, if the span or one within it is current in this context."""
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
    """Return the running context without spans that were entered here and ended elsewhere."""
    context = otel_context.get_current()
    while entered := _entered(context):
        current = trace.get_current_span(context)
        if current is not entered[-1].span or current.is_recording():
            break
        context = entered[-1].outer
    return context


def _entered(context: otel_context.Context) -> tuple[EnteredSpan, ...]:
    return cast("tuple[EnteredSpan, ...]", otel_context.get_value(_KEY, context) or ())
