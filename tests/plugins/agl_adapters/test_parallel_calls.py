"""Calls that an agent makes side by side lie within each other in time, and are several."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agl_adapters import LlmProxyTraceToTriplet, TracerTraceToTriplet
from agl_core import semconv
from agl_core.types import Span

TIMES = [(1, 5), (1.1, 4), (1.2, 3)]


def call(number: int, prompt: list[int], answer: str, response_id: str | None, **more: Any) -> Span:
    part = {"type": "text", "content": answer}
    said = [{"role": "assistant", "parts": [part], "finish_reason": "stop"}]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "prompt_token_ids": prompt,
        "response_token_ids": [20],
        "gen_ai.output.messages": json.dumps(said),
        "gen_ai.response.id": response_id,
    }
    start, end = TIMES[number]
    return Span.from_attributes(
        name=semconv.SPAN_MODEL_CALL,
        attributes={key: value for key, value in attributes.items() if value is not None},
        sequence_id=number + 1,
        start_time=start,
        end_time=end,
        span_id=f"c{number}",
        **more,
    )


@pytest.mark.parametrize("adapter", [TracerTraceToTriplet, LlmProxyTraceToTriplet])
@pytest.mark.parametrize("ids", [["a", "b", "c"], [None] * 3, [None, "b", None], ["a", None, "c"]])
@pytest.mark.parametrize("answers", [["yes"] * 3, ["yes", "no", "maybe"]])
def test_other_prompts_are_other_calls(adapter: Any, ids: list[str | None], answers: list[str]):
    spans = [call(i, [10 + i, 11], answers[i], ids[i]) for i in range(3)]
    triplets, report = adapter().adapt_with_report(spans)
    assert [triplet.prompt["token_ids"] for triplet in triplets] == [[10, 11], [11, 11], [12, 11]]
    assert report.count("call") == 0


@pytest.mark.parametrize("adapter", [TracerTraceToTriplet, LlmProxyTraceToTriplet])
def test_equal_votes_are_several_calls(adapter: Any):
    spans = [call(i, [10], "yes", f"vote-{i}") for i in range(3)]
    assert len(adapter().adapt(spans)) == 3


def test_a_call_of_a_client_below_its_framework_is_one_although_their_tokens_differ():
    """A parent in the trace says more than times: a framework may record tokens of its own."""
    outer = call(0, [6], "yes", "run-1")
    inner = call(1, [7], "yes", "response-1", parent_id=outer.span_id)
    (triplet,) = TracerTraceToTriplet().adapt([outer, inner])
    assert triplet.prompt["token_ids"] == [7]
