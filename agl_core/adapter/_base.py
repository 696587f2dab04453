"""The adapter contract: an adapter turns the spans of an attempt into training data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agl_core.adapter._report import AdapterReport
from agl_core.emitter._reward import parse_reward_value
from agl_core.types import Span, Triplet

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
else:
    ReadableSpan = Any  # naming it at run time would import the SDK

T_from = TypeVar("T_from")
T_to = TypeVar("T_to")


class Adapter(Generic[T_from, T_to]):
    """Converts data from one form to another; calling it is :meth:`adapt`.

    :meth:`adapt` changes only :attr:`report`, so threads may share an adapter: their results are
    independent, and :attr:`report` is the one of the adaptation that finished last. Callers that
    share an adapter and need the report of one adaptation call :meth:`adapt_with_report`.

    Subclasses override either :meth:`adapt`, or :meth:`adapt_with_report` if they count what they
    leave out. An adapter must count everything that it leaves out.
    """

    report: AdapterReport = AdapterReport()
    """Counts of the last :meth:`adapt`: what it left out and why. Empty before the first."""

    def adapt(self, source: T_from, /) -> T_to:
        """Convert ``source`` without changing it.

        Raises:
            ValueError: ``source`` cannot be converted at all.
        """
        base: Any = Adapter
        if type(self).adapt_with_report is base.adapt_with_report:
            raise NotImplementedError(f"{type(self).__name__} does not implement adapt()")
        result, self.report = self.adapt_with_report(source)
        return result

    def adapt_with_report(self, source: T_from, /) -> tuple[T_to, AdapterReport]:
        """Convert ``source``; return the result and the report of what was left out."""
        result = self.adapt(source)
        return result, self.report

    def __call__(self, source: T_from, /) -> T_to:
        return self.adapt(source)


class TraceAdapter(Adapter[Sequence[Span], T_to], Generic[T_to]):
    """An adapter of the spans of one attempt, given in the order they were stored.

    Some also accept spans of the OpenTelemetry SDK.
    """


class OtelTraceAdapter(Adapter[Sequence[ReadableSpan], T_to], Generic[T_to]):
    """An adapter of OpenTelemetry's own span objects."""


class TraceToTripletBase(TraceAdapter[list[Triplet]]):
    """Base of the adapters that produce triplets, the input of reinforcement learning."""


def read_reward(span: Span) -> float | None:
    """Return the primary reward of a span, or None if it carries none.

    A reward that is not a finite number is returned as NaN: any program can write a span, and an
    unreadable one must neither stop an adapter nor reach a gradient.
    """
    try:
        reward = parse_reward_value(span)
    except (TypeError, ValueError):
        return math.nan
    return reward if reward is None or math.isfinite(reward) else math.nan
