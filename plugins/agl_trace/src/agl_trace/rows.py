"""The spans of an attempt as rows, in the order of their tree.

Shown is what was recorded: nothing is moved to another parent, nothing is left out. Nothing
recurses, since traces of agents that call themselves are thousands of levels deep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from agl_core import semconv
from agl_core.adapter import (
    VIRTUAL_ROOT,
    ModelCall,
    TraceTree,
    by_start,
    is_model_call,
    read_reward,
)
from agl_core.emitter import get_rewards_from_span
from agl_core.errors import InvalidArgumentError
from agl_core.types import Span

__all__ = ["Kind", "SpanRow", "TraceSummary", "TraceView", "view_trace"]

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
        span_id: Its id; that of the missing span, where a recorded child names one as its parent.
        parent_id: Id of the row above it in the tree; None at the top.
        depth: Levels below the top.
        name: Its name.
        kind: What it is; ``missing`` stands for a parent that was never recorded.
        agent: Name of the agent whose run it is, if it is one.
        start: Seconds from the earliest start of the trace; None if unknown.
        seconds: Its duration; None if unknown.
        model: Model that was asked, for model calls.
        input_tokens: Tokens of the prompt, for model calls; None if unknown.
        output_tokens: Tokens of the answer, likewise.
        reward: Its primary reward; None if it has none, NaN if it cannot be read.
        rewards: All of its rewards by name, if there are several.
        operation: What an operation of ours is called; the span is named after the kind.
        text: What a message of the agent says, on one line.
        error: What went wrong, on one line; None if nothing did.
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
    input_tokens: int | None = None
    output_tokens: int | None = None
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict[str, float])
    operation: str | None = None
    text: str | None = None
    error: str | None = None
    last: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return it in a form that JSON knows; what it does not have is left out."""
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
        calls: Model calls.
        input_tokens: Tokens of their prompts, as far as known.
        output_tokens: Tokens of their answers, likewise.
        reward: The final reward: that of the last span, by sequence id, that has one.
        errors: Spans that say that something went wrong.
        missing: Parents that recorded spans name and that were not recorded.
    """

    spans: int
    seconds: float
    calls: int
    input_tokens: int
    output_tokens: int
    reward: float | None
    errors: int
    missing: int


@dataclass(frozen=True, slots=True)
class TraceView:
    """A trace: its rows, parents before their children, siblings by start; and their sums."""

    rows: Sequence[SpanRow]
    summary: TraceSummary


def view_trace(spans: Sequence[Span]) -> TraceView:
    """Arrange the spans of one attempt.

    Spans with the id of an earlier one are shown once. Takes O(n log n); no spans are an empty
    view.

    Args:
        spans: In the order of their sequence ids.
    """
    if not spans:
        return TraceView([], TraceSummary(0, 0.0, 0, 0, 0, None, 0, 0))
    top = _tree(spans)
    origin = min(_times(spans, "start_time"), default=None)
    if origin is None:
        origin = min(_times(spans, "end_time"), default=0.0)
    rows: list[SpanRow] = []
    tops = top.children if top.id == VIRTUAL_ROOT else [top]
    recorded = {span.span_id for span in spans}
    stack = _siblings(tops, None, 0)
    while stack:
        node, parent_id, depth, last = stack.pop()
        row = _row(node.span, parent_id, depth, origin)
        row.last = last
        row.agent = node.agent_name()
        if node.id not in recorded:
            row.span_id, row.kind, row.name = node.id, "missing", "(parent not recorded)"
        elif row.kind == "span" and row.agent is not None:
            row.kind = "agent"
        rows.append(row)
        stack += _siblings(node.children, node.id, depth + 1)
    return TraceView(rows, _summary(rows, spans))


def _tree(spans: Sequence[Span]) -> TraceTree:
    try:
        return TraceTree.from_spans(spans)
    except InvalidArgumentError:
        # The parents of all spans form cycles: cut where the first span is.
        first = spans[0].model_copy(update={"parent_id": None})
        return TraceTree.from_spans([first, *spans[1:]])


def _siblings(
    nodes: Sequence[TraceTree], parent_id: str | None, depth: int
) -> list[tuple[TraceTree, str | None, int, bool]]:
    """The entries of a stack for children of one parent: the first one on top."""
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
        row.input_tokens = _tokens(call, "input_tokens", "prompt_ids")
        row.output_tokens = _tokens(call, "output_tokens", "response_ids")
    elif any(str(attributes.get(key)) == value for key, value in _TOOL_MARKS):
        row.kind = "tool"
    row.reward = read_reward(span)
    if row.reward is not None:
        row.kind = "reward"
        row.rewards = _dimensions(span)
    if span.name == semconv.SPAN_OPERATION:
        row.operation = _one_line(attributes.get(semconv.OPERATION_NAME))
    elif row.kind == "message":
        row.text = _one_line(attributes.get(semconv.MESSAGE_BODY))
    row.error = _error(span)
    return row


def _one_line(value: Any) -> str | None:
    return None if value is None else " ".join(str(value).split())


def _tokens(call: ModelCall, usage: str, ids: Literal["prompt_ids", "response_ids"]) -> int | None:
    """What the server counted, or else how many token ids there are."""
    value, _ = call.find(usage)
    if isinstance(value, (int, float, str)):
        try:
            return int(value)
        except (ValueError, OverflowError):
            pass
    return len(getattr(call, ids)) or None


def _dimensions(span: Span) -> dict[str, float]:
    try:
        found = get_rewards_from_span(span)
    except (
        ValueError
    ):  # what is malformed shows in the reward, which is NaN or readable all the same
        return {}
    return {one.name: one.value for one in found} if len(found) > 1 else {}


def _error(span: Span) -> str | None:
    """What a span says went wrong: its status, or the exception that it is about."""
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
    told = ": ".join(str(part) for part in (kind, message) if part)
    said = span.status.description or ""
    text = told if said in told else said
    return " ".join(text.split()) or "error"


def _summary(rows: Sequence[SpanRow], spans: Sequence[Span]) -> TraceSummary:
    ends = max(
        (row.start + (row.seconds or 0.0) for row in rows if row.start is not None), default=0.0
    )
    final = next((r for span in reversed(spans) if (r := read_reward(span)) is not None), None)
    calls = [row for row in rows if row.kind == "model"]
    return TraceSummary(
        spans=len(spans),
        seconds=ends,
        calls=len(calls),
        input_tokens=sum(row.input_tokens or 0 for row in calls),
        output_tokens=sum(row.output_tokens or 0 for row in calls),
        reward=final,
        errors=sum(row.error is not None for row in rows),
        missing=sum(row.kind == "missing" for row in rows),
    )
