"""Adapters leave nothing out without counting it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from agl_adapters import is_model_call
from agl_core.adapter import Adapter, read_reward
from agl_core.types import Span, TraceStatus
from agl_testing.adapter.base import AdapterTests, MakeTrace

__all__ = ["LeftOutTests"]

CONTENT = "gen_ai.completion.0.content"
TOOL_CALL = {
    "gen_ai.completion.0.tool_calls.0.id": "call_0",
    "gen_ai.completion.0.tool_calls.0.name": "add",
    "gen_ai.completion.0.tool_calls.0.arguments": "{}",
}


def _without(span: Span, *keys: str, **more: Any) -> Span:
    kept = {key: value for key, value in span.attributes.items() if key not in keys}
    return span.model_copy(update={"attributes": {**kept, **more}})


BROKEN: dict[str, Callable[[Span], Span]] = {
    "failed": lambda span: span.model_copy(update={"status": TraceStatus(status_code="ERROR")}),
    "without text": lambda span: _without(span, CONTENT),
    "with tool calls only": lambda span: _without(span, CONTENT, **TOOL_CALL),
    "without token ids": lambda span: _without(span, "prompt_token_ids", "response_token_ids"),
}
"""Calls that an adapter may leave out."""


class LeftOutTests(AdapterTests):
    """Each call and each reward is in the result or in the report."""

    def test_a_turn_that_does_not_matter_is_counted(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        longer = make_trace(4)
        turn = len(longer) - len(make_trace(3))
        spans, other = longer[:-turn], longer[-turn:]
        whole, report = adapter.adapt_with_report(spans)
        ignored: list[bool] = []
        for start in range(len(spans) - 3 * turn, len(spans), turn):
            changed = list(spans)
            for place, span in enumerate(other, start):
                says = {"attributes": span.attributes}
                changed[place] = spans[place].model_copy(update=says)
            ignored.append(adapter.adapt(changed) == whole)
        # An adapter may have no use for what a turn says.
        assert report.left_out or len(set(ignored)) == 1, (
            f"of three turns the result ignores {ignored.count(True)}, and the report counts "
            "nothing that was left out; an adapter that leaves out counts, in adapt_with_report"
        )

    @pytest.mark.parametrize("broken", BROKEN)
    def test_a_call_that_is_left_out_is_counted(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace, broken: str
    ):
        spans = make_trace(3)
        whole = adapter.adapt(spans)
        for place, span in enumerate(spans):
            if is_model_call(span.attributes):
                changed = [*spans[:place], BROKEN[broken](span), *spans[place + 1 :]]
                result, report = adapter.adapt_with_report(changed)
                assert report.left_out or len(result) >= len(whole), (
                    f"a call {broken} is not in the result, and the report does not count it"
                )

    def test_a_reward_that_is_not_a_number_is_left_out(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        spans = make_trace(3)
        whole = adapter.adapt(spans)
        for place, span in enumerate(spans):
            if read_reward(span) is None:
                continue
            for key in span.attributes:
                bad = _without(span, **{key: math.nan})
                if not math.isnan(read_reward(bad) or 0):
                    continue  # not the key of the reward's value
                before, after = spans[:place], spans[place + 1 :]
                result, report = adapter.adapt_with_report([*before, bad, *after])
                assert not re.search(r"\bnan\b", repr(result)), (
                    "a reward that is not a number is in the result, and would reach a gradient"
                )
                matters = adapter.adapt([*before, *after]) != whole
                assert report.left_out or not matters, (
                    "a reward that is not a number is left out, and the report does not count it"
                )
