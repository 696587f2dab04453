"""Arranges the spans of an attempt as rows, in the order of their tree.

Rows show the spans as recorded: none is left out or moved to another parent. The code does not
recurse, since traces of recursive agents are thousands of levels deep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from agl_adapters import (
    VIRTUAL_ROOT,
    MatchedCall,
    ModelCall,
    TraceTree,
    by_start,
    distinct_calls,
    find_auxiliary_calls,
    is_model_call,
    total_tokens,
)
from agl_core import semconv
from agl_core.adapter import read_reward
from agl_core.emitter import by_authority, get_rewards_from_span
from agl_core.types import Span

__all__ = ["Kind", "SpanRow", "TraceSummary", "TraceView", "operation_of", "view_trace"]

Kind = Literal["model", "tool", "agent", "reward", "message", "exception", "missing", "span"]

_NAMED: Final[Mapping[str, Kind]] = {
    semconv.SPAN_MESSAGE: "message",
    semconv.SPAN_EXCEPTION: "exception",
}
_TOOL_MARKS: Final = (
    ("gen_ai.operation.name", "execute_tool"),
    ("openinference.span.kind", "TOOL"),
    ("agentops.span.kind", "tool"),
    ("traceloop.span.kind", "tool"),
)


@dataclass(slots=True)
class SpanRow:
    """One span of a trace.

    Attributes:
        span_id: Its id. A missing parent's row has the id that its children name.
        parent_id: Id of the row above it in the tree; None at the top.
        depth: Levels below the top.
        name: Its name.
        kind: Its kind; ``missing`` is a parent that was never recorded.
        agent: Name of the agent, if the span is an agent's run.
        start: Seconds from the earliest start of the trace; None if unknown.
        seconds: Its duration; None if unknown.
        model: Name of the model, for model calls.
        auxiliary: What an auxiliary call is for, such as a title; None for any other span.
        input_tokens: Tokens of the prompt, for model calls; None if unknown.
        output_tokens: Tokens of the response, likewise.
        reward: Its primary reward; None if it has none, NaN if it cannot be read.
        rewards: All of its rewards by name, if there are several.
        operation: Name of an operation recorded with agl's emitter; the span's name is generic.
        text: Text of an emitted message, on one line.
        error: The error, on one line; None without one.
        last: Whether it is the last child of its parent.
    """

    span_id: str
    parent_id: str | None
    depth: int
    name: str
    kind: Kind = "span"
    agent: str | None = None
    start: float | None = None
    seconds: float | None = None
    model: str | None = None
    auxiliary: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict[str, float])
    operation: str | None = None
    text: str | None = None
    error: str | None = None
    last: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON values, without empty fields."""
        found = {key: value for key, value in asdict(self).items() if value not in (None, {})}
        del found["last"]
        found.setdefault("parent_id", None)
        if self.reward is not None and not math.isfinite(self.reward):
            found["reward"] = str(self.reward)
        return found


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Sums over a trace.

    Attributes:
        spans: Spans recorded.
        seconds: From the earliest start to the latest end; 0.0 if no time is known.
        calls: Model calls, each once (:func:`agl_adapters.distinct_calls`).
        input_tokens: Known tokens of their prompts.
        output_tokens: Tokens of their responses, likewise.
        reward: The final reward: of the last span, by sequence id, that has one.
        errors: Spans with an error.
        missing: Parents that were not recorded.
        auxiliary: Model calls that adapters leave out by default, such as those for a title.
    """

    spans: int
    seconds: float
    calls: int
    input_tokens: int
    output_tokens: int
    reward: float | None
    errors: int
    missing: int
    auxiliary: int = 0


@dataclass(frozen=True, slots=True)
class TraceView:
    """A trace: rows, parents before children, siblings by start time; and sums."""

    rows: Sequence[SpanRow]
    summary: TraceSummary


def view_trace(spans: Sequence[Span]) -> TraceView:
    """Arrange the spans of one attempt.

    Spans with equal ids are shown once. Takes O(n log n) time.

    Args:
        spans: In the order of their sequence ids.
    """
    if not spans:
        return TraceView([], TraceSummary(0, 0.0, 0, 0, 0, None, 0, 0))
    top = TraceTree.of_any(spans)
    timed = [node.span for node in top.traverse()]
    origin = min(_times(timed, "start_time"), default=None)
    if origin is None:
        origin = min(_times(timed, "end_time"), default=0.0)
    rows: list[SpanRow] = []
    tops = top.children if top.id == VIRTUAL_ROOT else [top]
    recorded = {span.span_id for span in spans}
    auxiliary = find_auxiliary_calls(top)
    stack = _siblings(tops, None, 0)
    while stack:
        node, parent_id, depth, last = stack.pop()
        row = _row(node.span, parent_id, depth, origin)
        row.last = last
        row.agent = node.agent_name()
        row.auxiliary = auxiliary.get(node.id)
        if node.id not in recorded:
            row.span_id, row.kind, row.name = node.id, "missing", "(parent not recorded)"
        elif row.kind == "span" and row.agent is not None:
            row.kind = "agent"
        rows.append(row)
        stack += _siblings(node.children, node.id, depth + 1)
    return TraceView(rows, _summary(rows, spans, distinct_calls(top)))


def _siblings(
    nodes: Sequence[TraceTree], parent_id: str | None, depth: int
) -> list[tuple[TraceTree, str | None, int, bool]]:
    """Return stack entries for the children of one parent, with the first child on top."""
    ordered = sorted(nodes, key=by_start)
    return [
        (node, parent_id, depth, index == len(ordered) - 1) for index, node in enumerate(ordered)
    ][::-1]


def _times(spans: Iterable[Span], which: str) -> Iterable[float]:
    return (
        time for span in spans if (time := getattr(span, which)) is not None and math.isfinite(time)
    )


def _row(span: Span, parent_id: str | None, depth: int, origin: float) -> SpanRow:
    attributes = span.attributes
    row = SpanRow(span.span_id, parent_id, depth, span.name)
    start, end = (
        time if time is not None and math.isfinite(time) else None
        for time in (span.start_time, span.end_time)
    )
    if start is not None:
        row.start = start - origin
        if end is not None:
            row.seconds = max(0.0, end - start)
    row.kind = _NAMED.get(span.name, "span")
    if is_model_call(attributes):
        row.kind = "model"
        call = ModelCall(attributes)
        row.model = call.model
        row.input_tokens, row.output_tokens = call.tokens
    elif any(str(attributes.get(key)) == value for key, value in _TOOL_MARKS):
        row.kind = "tool"
    row.reward = read_reward(span)
    if row.reward is not None:
        row.kind = "reward"
        row.rewards = _dimensions(span)
    row.operation = operation_of(span)
    if row.kind == "message":
        row.text = _one_line(attributes.get(semconv.MESSAGE_BODY))
    row.error = _error(span)
    return row


def operation_of(span: Span) -> str | None:
    """Return the name of an operation recorded with agl's emitter, whose spans have one name."""
    if span.name != semconv.SPAN_OPERATION:
        return None
    return _one_line(span.attributes.get(semconv.OPERATION_NAME))


def _one_line(value: Any) -> str | None:
    return None if value is None else " ".join(str(value).split())


def _dimensions(span: Span) -> dict[str, float]:
    try:
        found = get_rewards_from_span(span)
    except ValueError:
        return {}  # malformed dimensions: the primary reward is shown, NaN if unreadable
    return {one.name: one.value for one in found} if len(found) > 1 else {}


def _error(span: Span) -> str | None:
    """Return a span's error: from its status, or the exception that it records."""
    kind = span.attributes.get("exception.type")
    message = span.attributes.get("exception.message")
    is_error = span.status.status_code == "ERROR"
    if kind is None and message is None and is_error:
        for event in span.events:
            if event.name == "exception":
                kind = event.attributes.get("exception.type")
                message = event.attributes.get("exception.message")
    if not is_error and span.name != semconv.SPAN_EXCEPTION:
        return None
    exception = ": ".join(str(part) for part in (kind, message) if part)
    description = span.status.description or ""
    text = exception if description in exception else description
    return " ".join(text.split()) or "error"


def _summary(
    rows: Sequence[SpanRow], spans: Sequence[Span], calls: Sequence[MatchedCall]
) -> TraceSummary:
    ends = max(
        (row.start + (row.seconds or 0.0) for row in rows if row.start is not None), default=0.0
    )
    final = next((r for span in by_authority(spans) if (r := read_reward(span)) is not None), None)
    taken, given = total_tokens(calls)
    return TraceSummary(
        spans=len(spans),
        seconds=ends,
        calls=len(calls),
        auxiliary=sum(row.auxiliary is not None for row in rows),
        input_tokens=taken or 0,
        output_tokens=given or 0,
        reward=final,
        errors=sum(row.error is not None for row in rows),
        missing=sum(row.kind == "missing" for row in rows),
    )
