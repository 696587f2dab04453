"""Adapters that make triplets."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from agl_adapters import is_model_call
from agl_core import semconv
from agl_core.adapter import Adapter, Reason, TraceToTripletBase
from agl_core.types import Span, TraceStatus, Triplet
from agl_testing.adapter.base import AdapterTests, MakeTrace, call_at, calls_at, turns_of
from agl_testing.suite import requires

__all__ = ["TripletTests"]


def changed(span: Span, **attributes: Any) -> Span:
    """Return a copy of a span with other attributes; None removes one."""
    merged = {**span.attributes, **attributes}
    kept = {key: value for key, value in merged.items() if value is not None}
    return span.model_copy(update={"attributes": kept})


def numbers(triplets: list[Triplet]) -> list[tuple[Any, Any, Any]]:
    return [(t.prompt["token_ids"], t.response["token_ids"], t.reward) for t in triplets]


class TripletTests(AdapterTests):
    """One triplet per call, in order, with its tokens and its reward; what is not is counted."""

    @requires("triplets")
    @pytest.mark.parametrize("nested", [True, False])
    def test_each_call_becomes_a_triplet_with_its_tokens_and_reward(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace, nested: bool
    ):
        assert isinstance(adapter, TraceToTripletBase)
        triplets = adapter.adapt(make_trace(4, nested=nested))
        assert [t.prompt["token_ids"] for t in triplets] == [[i, i + 1, i + 2] for i in range(4)]
        assert [t.response["token_ids"] for t in triplets] == [[100 + i, 101 + i] for i in range(4)]
        assert [t.reward for t in triplets] == [0.0, 1.0, 2.0, 3.0]

    @requires("triplets")
    def test_a_reward_before_any_call_goes_to_none(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        agent, call, reward = turns_of(make_trace, 1)
        early = reward.model_copy(update={"sequence_id": 0, "start_time": 0.01, "end_time": 0.01})
        triplets, report = adapter.adapt_with_report([agent, early, call])
        assert [t.reward for t in triplets] == [None]
        assert report.count("reward") == 1

    @requires("triplets")
    def test_a_call_that_was_seen_twice_counts_once(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        spans = turns_of(make_trace, 2)
        again = spans[1].model_copy(update={"span_id": "0f" * 8, "sequence_id": 99})
        triplets, report = adapter.adapt_with_report([*spans, again])
        assert len(triplets) == 2
        assert report.count("call") == 1

    @requires("triplets")
    def test_the_order_of_the_source_decides_nothing_but_the_order(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        expected = numbers(adapter.adapt(turns_of(make_trace, 5)))
        assert expected == sorted(expected, key=str)
        for seed in range(5):
            spans = turns_of(make_trace, 5)
            random.Random(seed).shuffle(spans)
            assert sorted(numbers(adapter.adapt(spans)), key=str) == expected

    @requires("triplets")
    def test_rewards_and_calls_are_all_accounted_for(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        spans = turns_of(make_trace, 6)
        calls = [span for span in spans if is_model_call(span.attributes)]
        rewards = [span for span in spans if span.name == spans[-1].name]
        value = next(key for key in rewards[0].attributes if key.endswith(".value"))
        replaced = {
            calls[1].span_id: changed(calls[1], response_token_ids=None, prompt_token_ids=None),
            calls[4].span_id: calls[3].model_copy(
                update={"span_id": calls[4].span_id, "sequence_id": calls[4].sequence_id}
            ),
            rewards[2].span_id: changed(rewards[2], **{value: math.nan}),
        }
        source = [replaced.get(span.span_id, span) for span in spans]
        triplets, report = adapter.adapt_with_report(source)
        assert len(triplets) + report.count("call") == len(calls)
        given = [triplet.reward for triplet in triplets if triplet.reward is not None]
        assert len(given) + report.count("reward") == len(rewards)
        assert not [reward for reward in given if math.isnan(reward)]
        assert report.count("reward") >= 1
        assert report.count("call") >= 1
        assert report.produced == {"triplets": len(triplets)}
        tokens = [triplet.response["token_ids"] for triplet in triplets]
        for turn in (0, 2, 3, 5):
            assert [100 + turn, 101 + turn] in tokens
            (triplet,) = [
                t for t in triplets if t.response["token_ids"] == [100 + turn, 101 + turn]
            ]
            assert triplet.prompt["token_ids"] == [turn, turn + 1, turn + 2]

    @requires("triplets")
    def test_an_empty_or_reused_response_id_hides_no_call(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        for reused in ("", "chatcmpl-999"):
            spans = [
                changed(span, **{"gen_ai.response.id": reused})
                if is_model_call(span.attributes)
                else span
                for span in turns_of(make_trace, 3)
            ]
            triplets, report = adapter.adapt_with_report(spans)
            tokens = [triplet.response["token_ids"] for triplet in triplets]
            assert tokens == [[100, 101], [101, 102], [102, 103]]
            assert report.count("call") == 0

    @requires("triplets")
    def test_a_call_that_failed_or_lacks_tokens_is_left_out(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        spans = turns_of(make_trace, 3)
        calls = calls_at(spans)
        failed = TraceStatus(status_code="ERROR", description="the stream was cut")
        spans[calls[0]] = spans[calls[0]].model_copy(update={"status": failed})
        spans[calls[1]] = changed(spans[calls[1]], **{"gen_ai.usage.output_tokens": 30})
        triplets, report = adapter.adapt_with_report(spans)
        assert [triplet.response["token_ids"] for triplet in triplets] == [[102, 103]]
        assert report.count("call", Reason.BROKEN) == 1
        assert report.count("call", Reason.INCOMPLETE_IDS) == 1

    @requires("triplets")
    def test_two_rewards_after_two_calls_reach_both(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        agent, first, early, second, late = turns_of(make_trace, 2)
        moment = {"start_time": late.start_time, "end_time": late.end_time}
        early = early.model_copy(update={"sequence_id": late.sequence_id + 1, **moment})
        source = [agent, first, second, late, early]
        triplets, report = adapter.adapt_with_report(source)
        assert [triplet.reward for triplet in triplets] == [0.0, 1.0]
        assert report.count("reward") == 0
        third = early.model_copy(update={"sequence_id": 99, "span_id": "0e" * 8})
        triplets, report = adapter.adapt_with_report([*source, third])
        assert [triplet.reward for triplet in triplets] == [0.0, 1.0]
        assert report.count("reward") == 1

    @requires("triplets")
    @pytest.mark.parametrize("bad", [["a"], "[1, -2, 3]", [2**31], 5, "many"])
    def test_token_ids_that_cannot_be_are_not_used(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace, bad: Any
    ):
        spans = turns_of(make_trace, 2)
        at = call_at(spans)
        spans[at] = changed(spans[at], response_token_ids=bad)
        triplets, report = adapter.adapt_with_report(spans)
        assert [(item, n) for (item, _), n in report.repaired.items()] == [("call", 1)]
        assert [t.response["token_ids"] for t in triplets if t.response["token_ids"]] == [
            [101, 102]
        ]

    @requires("triplets")
    @pytest.mark.parametrize("ids", [[1.0, 2.0], "[1, 2]", "[1.0, 2.0]"])
    def test_token_ids_may_be_whole_floats_or_text(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace, ids: Any
    ):
        spans = turns_of(make_trace, 1)
        at = call_at(spans)
        spans[at] = changed(spans[at], response_token_ids=ids)
        (triplet,), report = adapter.adapt_with_report(spans)
        assert triplet.response["token_ids"] == [1, 2]
        assert [type(token) for token in triplet.response["token_ids"]] == [int, int]
        assert report.repaired == {}

    @requires("triplets")
    def test_a_parent_that_is_missing_loses_no_call(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        expected = numbers(adapter.adapt(turns_of(make_trace, 3)))
        assert numbers(adapter.adapt(turns_of(make_trace, 3)[1:])) == expected
        # One call, which is the only child of the parent that is missing.
        assert len(adapter.adapt(turns_of(make_trace, 1)[1:2])) == 1

    @requires("logprobs")
    def test_a_span_that_came_twice_is_read_once(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        spans = turns_of(make_trace, 3)
        triplets, report = adapter.adapt_with_report([*spans, spans[0], spans[-1]])
        assert numbers(triplets) == numbers(adapter.adapt(spans))
        assert report.count("span") == 2
        assert f"{len(spans) + 2} spans" in str(report)
        assert "2 spans (" in str(report)

    @requires("triplets")
    def test_one_reward_after_many_calls_goes_to_the_last(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        spans = turns_of(make_trace, 9)
        calls = [span for span in spans if is_model_call(span.attributes)]
        triplets = adapter.adapt([spans[0], *calls, spans[-1]])
        assert [triplet.reward for triplet in triplets] == [None] * 8 + [8.0]

    @requires("logprobs")
    def test_a_call_that_did_not_end_gets_no_reward(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        agent, call, reward = turns_of(make_trace, 1)
        open_call = call.model_copy(update={"end_time": None})
        (triplet,), report = adapter.adapt_with_report([agent, open_call, reward])
        assert triplet.reward is None
        assert report.count("reward") == 1

    @requires("triplets")
    def test_a_call_that_a_recording_answered_is_left_out(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        spans = turns_of(make_trace, 3)
        calls = calls_at(spans)
        spans[calls[1]] = changed(spans[calls[1]], **{semconv.REPLAYED_CALL: "ro-before"})
        triplets, report = adapter.adapt_with_report(spans)
        assert [t.response["token_ids"] for t in triplets] == [[100, 101], [102, 103]]
        assert report.count("call") == 1

    @requires("triplets")
    def test_a_cycle_of_parents_loses_no_call(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        spans = turns_of(make_trace, 3)
        for child, parent in ((1, 2), (2, 1)):
            spans[child] = spans[child].model_copy(update={"parent_id": spans[parent].span_id})
        triplets = adapter.adapt(spans)
        tokens = sorted(triplet.response["token_ids"] for triplet in triplets)
        assert tokens == [[100, 101], [101, 102], [102, 103]]
        assert {item for item, _ in adapter.report.repaired} <= {"span"}

    @requires("triplets")
    def test_a_response_has_its_id(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        triplets = adapter.adapt(turns_of(make_trace, 2))
        ids = [triplet.metadata["response_id"] for triplet in triplets]
        assert ids == ["response-0", "response-1"]

    @requires("triplets")
    def test_a_reward_at_the_end_of_a_call_is_its_reward(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        agent, call, reward = turns_of(make_trace, 1)
        moment = {"start_time": call.end_time, "end_time": call.end_time}
        (triplet,) = adapter.adapt([agent, call, reward.model_copy(update=moment)])
        assert triplet.reward == 0.0

    @requires("logprobs")
    def test_a_call_that_lost_its_parent_stays_with_its_agent(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        spans = turns_of(make_trace, 3)
        for at in range(1, len(spans)):
            spans[at] = spans[at].model_copy(update={"parent_id": None})
        triplets, report = adapter.adapt_with_report(spans)
        assert [triplet.metadata["agent_name"] for triplet in triplets] == ["helper"] * 3
        assert [triplet.reward for triplet in triplets] == [0.0, 1.0, 2.0]
        assert sum(report.repaired.values()) >= 3
        assert report.count("call") == 0

    @requires("logprobs")
    @pytest.mark.parametrize("has_id", ["inner", "outer", "both", "neither"])
    @pytest.mark.parametrize("between", [False, True])
    def test_a_call_around_a_call_counts_once(
        self,
        adapter: Adapter[Any, list[Triplet]],
        make_trace: MakeTrace,
        has_id: str,
        between: bool,
    ):
        agent, inner, reward = turns_of(make_trace, 1)
        outer = changed(inner, response_token_ids=[7], prompt_token_ids=[6])
        outer = outer.model_copy(update={"span_id": "0f" * 8})
        if has_id not in ("inner", "both"):
            inner = changed(inner, **{"gen_ai.response.id": None})
        if has_id not in ("outer", "both"):
            outer = changed(outer, **{"gen_ai.response.id": None})
        spans = [agent, outer]
        parent = outer.span_id
        if between:
            tool = {"span_id": "0e" * 8, "parent_id": parent, "name": "tool", "attributes": {}}
            spans.append(outer.model_copy(update=tool))
            parent = "0e" * 8
        spans += [inner.model_copy(update={"parent_id": parent}), reward]
        (triplet,), report = adapter.adapt_with_report(spans)
        # The inner call has more data, unless only the outer one has an id.
        kept = [7] if has_id in ("outer", "both") else [100, 101]
        assert triplet.response["token_ids"] == kept
        assert triplet.reward == 0.0
        assert report.count("call") == 1

    @requires("logprobs")
    def test_a_recorded_call_around_or_in_a_call_leaves_none(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        agent, inner, reward = turns_of(make_trace, 1)
        outer = changed(inner, **{"gen_ai.response.id": None})
        outer = outer.model_copy(update={"span_id": "0f" * 8})
        inner = changed(inner, **{semconv.REPLAYED_CALL: "ro-before"})
        inner = inner.model_copy(update={"parent_id": outer.span_id})
        triplets, report = adapter.adapt_with_report([agent, outer, inner, reward])
        assert triplets == []
        assert report.count("call") == 2

    @requires("logprobs")
    def test_a_repeated_response_adds_the_token_ids_that_were_missing(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        agent, call, reward = turns_of(make_trace, 1)
        again = call.model_copy(update={"span_id": "0f" * 8, "sequence_id": 99})
        bare = changed(call, response_token_ids=None, prompt_token_ids=None)
        (triplet,), report = adapter.adapt_with_report([agent, bare, reward, again])
        assert triplet.response["token_ids"] == [100, 101]
        assert report.count("call") == 1

    @requires("logprobs")
    def test_logprobs_that_cannot_be_read_are_left_out(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        agent, call, reward = turns_of(make_trace, 1)
        odd = changed(call, **{"logprobs.content": "many"})
        (triplet,), report = adapter.adapt_with_report([agent, odd, reward])
        assert "logprobs" not in triplet.response
        assert [item for item, _ in report.repaired] == ["call"]

    @requires("logprobs")
    def test_images_of_a_prompt_are_listed(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        agent, call, reward = turns_of(make_trace, 1)
        url = "data:image/png;base64,AAAA"
        parts = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}]
        seen = changed(call, **{"gen_ai.prompt.0.content": json.dumps(parts)})
        (triplet,) = adapter.adapt([agent, seen, reward])
        assert triplet.prompt["image_urls"] == [url]

    @requires("logprobs")
    def test_triplets_have_text_and_logprobs(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        for turn, triplet in enumerate(adapter.adapt(turns_of(make_trace, 2))):
            (asked,), (answered,) = triplet.prompt["raw_content"], triplet.response["raw_content"]
            assert (asked["role"], asked["content"]) == ("user", f"question {turn}")
            assert (answered["role"], answered["content"]) == ("assistant", f"answer {turn}")
            logprobs = [entry["logprob"] for entry in triplet.response["logprobs"]]
            assert logprobs == [-0.5, -0.25]
            assert triplet.metadata["request"]["model"] == "m"
            assert triplet.metadata["agent_name"] == "helper"
            assert triplet.prompt["image_urls"] == []

    @requires("logprobs")
    def test_logprobs_and_rewards_are_exact(
        self, adapter: Adapter[Any, list[Triplet]], make_trace: MakeTrace
    ):
        exact, reward = [-0.123456789012345, -1e-12], -1234567.0123456789
        agent, call, rewarded = turns_of(make_trace, 1)
        said = [{"token": "a", "logprob": value, "bytes": None} for value in exact]
        call = changed(call, **{"logprobs.content": json.dumps(said)})
        rewarded = changed(rewarded, **{semconv.PRIMARY_REWARD_VALUE: reward})
        (triplet,) = adapter.adapt([agent, call, rewarded])
        assert [entry["logprob"] for entry in triplet.response["logprobs"]] == exact
        assert triplet.reward == reward
