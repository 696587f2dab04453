"""Spans as rows: order, depth, the fields of a row, and broken traces."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from agl_core.types import Attributes, Event, Span, TraceStatus
from agl_trace import Style, render_trace, view_trace

T = 1_700_000_000.0


def span(number: int, parent: int = 0, name: str = "step", **said: Any) -> Span:
    start, end = said.pop("start", number), said.pop("end", number + 1)
    error = said.pop("error", None)
    made = Span.from_attributes(
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=number,
        name=name,
        trace_id="1" * 32,
        span_id=f"{number:016x}",
        parent_id=f"{parent:016x}" if parent else None,
        start_time=None if start is None else T + start,
        end_time=None if end is None else T + end,
        status=TraceStatus(status_code="OK" if error is None else "ERROR", description=error),
        attributes=said.pop("attributes", {}),
    )
    return made.model_copy(update=said)


def shape(spans: list[Span]) -> list[tuple[int, int]]:
    return [(int(row.span_id, 16), row.depth) for row in view_trace(spans).rows]


def test_parents_come_first_and_siblings_by_start():
    spans = [span(4, 1, start=1), span(3, 2), span(1, start=0, end=9), span(2, 1, start=2)]
    assert shape(spans) == [(1, 0), (4, 1), (2, 1), (3, 2)]
    rows = view_trace(spans).rows
    assert [row.last for row in rows] == [True, False, True, True]
    assert [row.parent_id and int(row.parent_id, 16) for row in rows] == [None, 1, 1, 2]
    assert [row.start for row in rows] == [0, 1, 2, 3]
    assert [row.seconds for row in rows] == [9, 4, 1, 1]


def test_overlapping_siblings_keep_their_times():
    rows = view_trace(
        [span(1, start=0, end=3), span(2, 1, start=0, end=2), span(3, 1, start=1, end=3)]
    )
    assert [(row.start, row.seconds) for row in rows.rows] == [(0, 3), (0, 2), (1, 2)]


def test_the_clock_of_a_proxy_may_differ():
    call = span(2, 1, start=1, end=3)
    proxy = span(3, 2, start=7201.5, end=7202.5)
    assert proxy.parent is not None
    proxy.parent.is_remote = True
    view = view_trace([span(1, start=0, end=9), call, proxy])
    assert [(row.start, row.seconds) for row in view.rows] == [(0, 9), (1, 2), (1.5, 1)]
    assert view.summary.seconds == 9


def test_several_roots_are_all_at_the_top():
    assert shape([span(2), span(1)]) == [(1, 0), (2, 0)]


def test_a_parent_that_was_not_recorded_has_a_row():
    view = view_trace([span(1), span(2, 9), span(3, 9)])
    assert [(row.kind, row.depth) for row in view.rows] == [
        ("span", 0),
        ("missing", 0),
        ("span", 1),
        ("span", 1),
    ]
    assert view.rows[1].span_id == f"{9:016x}"
    assert view.summary.missing == 1
    assert view.summary.spans == 3


def test_cycles_are_cut_and_every_span_is_shown_once():
    assert sorted(shape([span(1, 2), span(2, 1)])) == [(1, 0), (2, 1)]
    ring = [span(5, 4), span(1), span(2, 3), span(3, 2), span(4, 5)]
    assert sorted(number for number, _ in shape(ring)) == [1, 2, 3, 4, 5]
    assert shape([span(1, 1)]) == [(1, 0)]


def test_a_span_sent_twice_is_shown_once():
    assert shape([span(1), span(1)]) == [(1, 0)]


def test_no_spans_are_an_empty_view():
    view = view_trace([])
    assert (view.rows, view.summary.spans, view.summary.seconds) == ([], 0, 0.0)


@pytest.mark.parametrize("start", [None, math.nan])
def test_times_that_are_unknown(start):
    view = view_trace([span(1, start=start, end=2), span(2, 1, start=0, end=None)])
    assert [(row.start, row.seconds) for row in view.rows] == [(None, None), (0, None)]
    assert view.summary.seconds == 0
    (row,) = view_trace([span(1, start=5, end=3)]).rows
    assert row.seconds == 0  # the clock was set back


def test_model_calls_show_model_and_tokens():
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.id": "r",
        "gen_ai.response.model": "qwen",
        "gen_ai.usage.input_tokens": 31,
        "gen_ai.usage.output_tokens": 4,
    }
    ids = {"gen_ai.response.id": "s", "prompt_token_ids": [1, 2, 3], "response_token_ids": [4]}
    neither = {"gen_ai.response.id": "t", "gen_ai.usage.input_tokens": "many"}
    view = view_trace(
        [span(n, attributes=one) for n, one in enumerate((said, ids, neither), start=1)]
    )
    assert [(r.kind, r.model, r.input_tokens, r.output_tokens) for r in view.rows] == [
        ("model", "qwen", 31, 4),
        ("model", None, 3, 1),
        ("model", None, None, None),
    ]
    summary = view.summary
    assert (summary.calls, summary.input_tokens, summary.output_tokens) == (3, 34, 5)


def test_a_call_that_client_and_proxy_recorded_counts_once():
    said = {"gen_ai.response.id": "r", "gen_ai.usage.output_tokens": 7}
    spans = [
        span(1, name="openai.chat.completion", attributes=said),
        span(2, 1, name="agl.proxy.openai.chat.completion", attributes=said),
        span(3, name="openai.chat.completion", attributes=said),
    ]
    view = view_trace(spans)
    assert [row.kind for row in view.rows] == ["model"] * 3
    assert (view.summary.calls, view.summary.output_tokens) == (2, 14)


def test_a_span_of_a_proxy_may_have_no_parent():
    said = {"gen_ai.response.id": "r", "gen_ai.usage.output_tokens": 7}
    spans = [
        span(1, name="agent", end=9),
        span(2, 1, name="openai.chat.completion", end=6, attributes=said),
        span(3, name="agl.proxy.openai.chat.completion", end=5, attributes=said),
    ]
    view = view_trace(spans)
    assert len(view.rows) == 3
    assert (view.summary.calls, view.summary.output_tokens) == (1, 7)


def test_kinds():
    tool = {"gen_ai.operation.name": "execute_tool"}
    spans = [
        span(1, attributes=tool),
        span(2, attributes={"agent.name": "planner"}),
        span(3, name="agentlightning.message"),
        span(4, attributes={"openinference.span.kind": "TOOL"}),
    ]
    rows = view_trace(spans).rows
    assert [row.kind for row in rows] == ["tool", "agent", "message", "tool"]
    assert rows[1].agent == "planner"


def test_operations_and_messages_show_name_and_text():
    spans = [
        span(
            1, name="agentlightning.operation", attributes={"agentlightning.operation.name": "chat"}
        ),
        span(2, name="agentlightning.message", attributes={"agentlightning.message.body": "a\n b"}),
    ]
    one, two = view_trace(spans).rows
    assert (one.name, one.operation) == ("agentlightning.operation", "chat")
    assert (two.kind, two.text) == ("message", "a b")


def reward(number: int, *values: tuple[str, Any]) -> Span:
    attributes = {}
    for index, (name, value) in enumerate(values):
        attributes[f"agentlightning.reward.{index}.name"] = name
        attributes[f"agentlightning.reward.{index}.value"] = value
    return span(number, name="agentlightning.annotation", attributes=attributes)


def test_rewards_and_the_final_one():
    view = view_trace([reward(1, ("primary", 0.25)), reward(2, ("all", 0.5), ("form", 1.0))])
    assert [(row.kind, row.reward, row.rewards) for row in view.rows] == [
        ("reward", 0.25, {}),
        ("reward", 0.5, {"all": 0.5, "form": 1.0}),
    ]
    assert view.summary.reward == 0.5
    (row,) = view_trace([reward(1, ("primary", "a lot"), ("x", 1.0))]).rows
    assert row.reward is not None
    assert math.isnan(row.reward)
    assert row.as_dict()["reward"] == "nan"


def test_errors_show_their_message():
    exception: Attributes = {"exception.type": "ValueError", "exception.message": "bad\n  value"}
    spans = [
        span(1, error="ValueError: bad\n  value", attributes=exception),
        span(2, error="went wrong", attributes=exception),
        span(3, error="", events=[Event(name="exception", attributes=exception)]),
        span(4, error=""),
        span(5, name="agentlightning.exception", attributes=exception),
        span(6, attributes=exception),  # the exception was caught, and the span succeeded
    ]
    view = view_trace(spans)
    assert [row.error for row in view.rows] == [
        "ValueError: bad value",
        "went wrong",
        "ValueError: bad value",
        "error",
        "ValueError: bad value",
        None,
    ]
    assert view.summary.errors == 5


def test_json_leaves_out_empty_fields():
    (row,) = view_trace([span(1)]).rows
    assert row.as_dict() == {
        "span_id": f"{1:016x}",
        "parent_id": None,
        "depth": 0,
        "name": "step",
        "kind": "span",
        "start": 0.0,
        "seconds": 1.0,
    }


@pytest.mark.parametrize("shape", ["deep", "wide", "random"])
def test_ten_thousand_spans(shape):
    numbers = random.Random(0)
    parents = {
        "deep": lambda n: n - 1,
        "wide": lambda n: min(n - 1, 1),
        "random": lambda n: numbers.randint(1, n - 1) if n > 1 else 0,
    }[shape]
    spans = [span(n, parents(n)) for n in range(1, 10_001)]
    numbers.shuffle(spans)
    rows = view_trace(spans).rows
    assert len(rows) == 10_000
    if shape != "random":
        assert max(row.depth for row in rows) == {"deep": 9999, "wide": 1}[shape]
    seen: set[str] = set()
    for row in rows:
        assert row.parent_id is None or row.parent_id in seen
        seen.add(row.span_id)


def test_auxiliary_calls_are_marked_and_counted():
    def call(number: int, told: str, *more: str) -> Span:
        texts = [
            ("system", told),
            ("user", "mend it"),
            *zip(("assistant", "user"), more, strict=False),
        ]
        sent = [{"role": r, "parts": [{"type": "text", "content": t}]} for r, t in texts]
        answer = [{"role": "assistant", "parts": [{"type": "text", "content": "reading"}]}]
        attributes: Any = {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps(sent),
            "gen_ai.output.messages": json.dumps(answer),
        }
        return span(number, 1, attributes=attributes)

    title = "Generate a title for this conversation."
    mend = "You mend programs."
    spans = [span(1, end=9), call(2, mend), call(3, title), call(4, mend, "reading", "go on")]
    view = view_trace(spans)
    assert [row.auxiliary for row in view.rows] == [None, None, "title", None]
    assert (view.summary.calls, view.summary.auxiliary) == (3, 1)
    lines = list(render_trace(view, Style(width=80)))
    assert "step (title)" in lines[3]
    # A title is the task where nothing else remains.
    assert view_trace([call(2, title)]).summary.auxiliary == 0
