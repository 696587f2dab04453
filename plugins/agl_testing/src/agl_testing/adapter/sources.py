"""What adapters make of long, odd and unordered traces, and what they leave alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from agl_adapters import is_model_call
from agl_core.adapter import Adapter, read_reward
from agl_core.types import Span, TraceStatus
from agl_testing.adapter.base import AdapterTests, MakeTrace, call_at, counts
from agl_testing.suite import requires

__all__ = ["SourceTests"]

LONG_TEXT = "snow \u2603 " * 20_000
LONG_ANSWER = list(range(5000))


def _with_a_span_of_nothing(spans: list[Span]) -> list[Span]:
    bare: dict[str, Any] = {"name": "", "attributes": {}, "span_id": "0d" * 8}
    return [*spans, spans[-1].model_copy(update=bare)]


def _changed(update: dict[str, Any]) -> Callable[[list[Span]], list[Span]]:
    return lambda spans: [span.model_copy(update=update) for span in spans]


ODD: dict[str, Callable[[list[Span]], list[Span]]] = {
    "spans that did not end": _changed({"end_time": None}),
    "spans without times": _changed({"start_time": None, "end_time": None}),
    "spans that failed": _changed({"status": TraceStatus(status_code="ERROR", description="no")}),
    "a span of nothing": _with_a_span_of_nothing,
    "calls only": lambda spans: [span for span in spans if is_model_call(span.attributes)],
    "rewards only": lambda spans: [span for span in spans if read_reward(span) is not None],
    "half of a trace": lambda spans: spans[: len(spans) // 2],
}
"""Traces of agents that were stopped, that failed, or whose spans came in part."""


class SourceTests(AdapterTests):
    """Every call of a trace counts, and its list and its spans stay as they are."""

    def test_a_trace_of_calls_gives_a_result(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        nothing = (
            f"{type(adapter).__name__} gives nothing for a trace of three calls, so this suite "
            "tests nothing: override the fixture `make_trace` with traces that it is for"
        )
        assert len(adapter.adapt(make_trace(3))), nothing
        assert len(adapter.adapt(make_trace(3, nested=False))), nothing

    @pytest.mark.parametrize("turns", [60, 600])
    def test_the_last_call_of_a_long_trace_counts(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace, turns: int
    ):
        spans = make_trace(turns)
        turn = len(spans) - len(make_trace(turns - 1))
        # Two traces of equal length that differ in their last turn only.
        one, other = spans[:-turn], [*spans[: -2 * turn], *spans[-turn:]]
        assert adapter.adapt(one) != adapter.adapt(other), "the end of a long trace is lost"

    @pytest.mark.parametrize("order", ["reversed", "shuffled"])
    def test_it_leaves_the_order_of_its_source_alone(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace, order: str
    ):
        source = make_trace(6)[::-1]
        if order == "shuffled":
            random.Random(7).shuffle(source)
        before = list(map(id, source))
        adapter.adapt(source)
        assert list(map(id, source)) == before

    def test_a_reward_of_zero_is_a_reward(self, adapter: Adapter[Any, Any], make_trace: MakeTrace):
        spans = make_trace(3)
        whole = adapter.adapt(spans)
        matters = {
            reward: adapter.adapt([other for other in spans if other is not span]) != whole
            for span in spans
            if (reward := read_reward(span)) is not None
        }
        if 0.0 not in matters:
            return  # a trace without such a reward
        # An adapter may have no use for rewards, or for those of a few calls only.
        assert matters[0.0] or not all(seen for reward, seen in matters.items() if reward), (
            "a reward of 0 is taken for none"
        )

    @pytest.mark.parametrize("odd", ODD)
    def test_an_odd_trace_is_no_error(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace, odd: str
    ):
        spans = ODD[odd](make_trace(4))
        if not spans:
            return  # a trace of other spans, which no rule here says how to change
        _, report = adapter.adapt_with_report(spans)
        assert report.spans == len(spans) or not counts(adapter), "the report counts other spans"

    @requires("messages")
    def test_a_long_text_is_whole(self, adapter: Adapter[Any, Any], make_trace: MakeTrace):
        spans = make_trace(1)
        at = call_at(spans)
        said = {"gen_ai.prompt.0.content": LONG_TEXT, "gen_ai.completion.0.content": LONG_TEXT}
        spans[at] = spans[at].model_copy(update={"attributes": {**spans[at].attributes, **said}})
        (conversation,) = adapter.adapt(spans)
        texts = [message["content"] for message in conversation["messages"]]
        assert texts == [LONG_TEXT, LONG_TEXT]

    @requires("triplets")
    def test_a_long_answer_is_whole(self, adapter: Adapter[Any, Any], make_trace: MakeTrace):
        spans = make_trace(1)
        at = call_at(spans)
        ids = {"prompt_token_ids": LONG_ANSWER[::-1], "response_token_ids": LONG_ANSWER}
        kept = {k: v for k, v in spans[at].attributes.items() if "logprobs" not in k}
        spans[at] = spans[at].model_copy(update={"attributes": {**kept, **ids}})
        (triplet,) = adapter.adapt(spans)
        assert triplet.prompt["token_ids"] == LONG_ANSWER[::-1]
        assert triplet.response["token_ids"] == LONG_ANSWER
