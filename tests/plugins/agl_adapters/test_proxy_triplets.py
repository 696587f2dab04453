"""Tests of LlmProxyTraceToTriplet: sequence ids alone determine order and rewards."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, strategies as st

from agl_adapters import LlmProxyTraceToTriplet
from agl_core import semconv
from agl_core.adapter import Reason, Repair
from agl_core.types import Span


def span(sequence_id: int, name: str = "x", start: float | None = 0.0, **attributes: Any) -> Span:
    return Span.from_attributes(
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
        sequence_id=sequence_id,
        name=name,
        start_time=start,
    )


def call(sequence_id: int, response: int, start: float | None = 0.0, **more: Any) -> Span:
    return span(
        sequence_id,
        semconv.SPAN_MODEL_CALL,
        start,
        prompt_token_ids=[1],
        response_token_ids=[response],
        **more,
    )


def reward(sequence_id: int, value: float) -> Span:
    return span(sequence_id, start=-1.0, agentlightning__reward__0__value=value)


def summary(spans: list[Span]) -> list[tuple[list[int], float | None]]:
    return [(t.response["token_ids"], t.reward) for t in LlmProxyTraceToTriplet().adapt(spans)]


def test_one_response_counts_once() -> None:
    spans = [
        call(4, 2, gen_ai__response__id="chat-1"),
        call(5, 2, gen_ai__response__id="chat-1"),
        span(6, semconv.SPAN_MODEL_CALL, gen_ai__response__id="chat-2"),
        span(7, "openai.chat.completion", prompt_token_ids=[1], response_token_ids=[2]),
    ]
    adapter = LlmProxyTraceToTriplet()
    assert [t.response["token_ids"] for t in adapter.adapt(spans)] == [[2]]
    assert adapter.report.spans == 4
    assert adapter.report.left_out == {
        ("call", Reason.DUPLICATE_RESPONSE): 1,
        ("call", Reason.NO_TOKEN_IDS): 1,
    }


def test_an_id_that_a_server_uses_again_hides_no_call() -> None:
    again = [call(4, 2, gen_ai__response__id="chat-1"), call(5, 3, gen_ai__response__id="chat-1")]
    assert summary(again) == [([2], None), ([3], None)]


def test_spans_of_a_dialect_whose_package_is_missing_name_the_package(agl_registry) -> None:
    agl_registry.add("catalogue.agl", "agl_catalogue.hooks")
    adapter = LlmProxyTraceToTriplet()
    raw = span(1, "raw_gen_ai_request", llm__openai__id="chat-1")
    assert adapter.adapt([raw]) == []
    assert adapter.report.left_out == {
        ("span", "written in the dialect 'litellm': install agl-proxy-litellm from its source"): 1
    }


def test_two_rewards_after_two_calls_go_latest_first() -> None:
    spans = [reward(5, 0.5), call(1, 1), reward(6, 0.25), call(2, 2)]
    assert summary(spans) == [([1], 0.25), ([2], 0.5)]


def test_a_reward_of_the_same_or_a_smaller_sequence_id_is_not_the_calls() -> None:
    adapter = LlmProxyTraceToTriplet()
    spans = [call(2, 1), reward(2, 1.0), reward(1, 1.0)]
    assert [t.reward for t in adapter.adapt(spans)] == [None]
    assert adapter.report.left_out == {("reward", Reason.NO_CALL): 2}


def test_times_order_spans_of_one_sequence_id_only() -> None:
    assert [ids for ids, _ in summary([call(2, 1, 0.0), call(1, 2, 9.0), call(1, 3, 1.0)])] == [
        [3],
        [2],
        [1],
    ]
    assert [ids for ids, _ in summary([call(1, 1, None), call(1, 2, 5.0)])] == [[2], [1]]


def test_what_cannot_be_read_is_counted() -> None:
    adapter = LlmProxyTraceToTriplet()
    bad = span(1, semconv.SPAN_MODEL_CALL, prompt_token_ids="[1, oops", response_token_ids=[1])
    assert adapter.adapt([bad, reward(2, float("nan"))]) == []
    assert adapter.report.left_out == {
        ("call", Reason.NO_TOKEN_IDS): 1,
        ("reward", Reason.NOT_A_NUMBER): 1,
    }
    assert adapter.report.repaired == {("call", Repair.BAD_TOKEN_IDS): 1}
    assert adapter.adapt([]) == []


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=20))
def test_rewards_match_by_the_literal_rule(events: list[tuple[int, bool]]) -> None:
    spans = [
        call(sequence, index, float(index)) if is_call else reward(sequence, float(index))
        for index, (sequence, is_call) in enumerate(events)
    ]
    calls = sorted((seq, i) for i, (seq, is_call) in enumerate(events) if is_call)
    rewards = sorted((seq, i) for i, (seq, is_call) in enumerate(events) if not is_call)
    expected: dict[int, float] = {}
    # Rewards with one sequence id are ordered by time, which is equal for all of them here.
    for sequence, index in rewards:
        for call_sequence, call_index in reversed(calls):
            if call_sequence < sequence and call_index not in expected:
                expected[call_index] = float(index)
                break
    assert summary(spans) == [([index], expected.get(index)) for _, index in calls]


def test_triplets_have_the_log_probabilities_of_the_choice_that_was_used() -> None:
    finish: dict[str, Any] = {
        "gen_ai__response__finish_reasons": ["stop", "stop"],
        "response_token_ids__1": [3],
    }
    two: dict[str, Any] = {
        "logprobs__content": '[{"logprob": -1}]',
        "logprobs__content__1": '[{"logprob": -2}]',
    }
    first = call(1, 2, **finish, **two)
    second = call(2, 4, logprobs__content="many")
    second.attributes["prompt_token_ids"] = [1, 3, 7]
    adapter = LlmProxyTraceToTriplet()
    used, last = adapter.adapt([first, second])
    assert used.response == {"token_ids": [3], "logprobs": [{"logprob": -2}]}
    assert last.response == {"token_ids": [4]}
    assert adapter.report.repaired == {("call", Repair.BAD_LOGPROBS): 1}


def test_a_choice_whose_token_ids_were_not_captured_is_no_triplet() -> None:
    def said(*texts: str) -> list[dict[str, Any]]:
        roles = ("user", "assistant")
        return [{"role": roles[i % 2], "parts": [_text(text)]} for i, text in enumerate(texts)]

    def _text(text: str) -> dict[str, str]:
        return {"type": "text", "content": text}

    answers = [{"role": "assistant", "parts": [_text(text)]} for text in ("a", "b")]
    first = call(
        1,
        10,
        gen_ai__input__messages=json.dumps(said("q")),
        gen_ai__output__messages=json.dumps(answers),
    )
    following = call(2, 11, gen_ai__input__messages=json.dumps(said("q", "b", "more")))
    adapter = LlmProxyTraceToTriplet()
    assert [one.response["token_ids"] for one in adapter.adapt([first, following])] == [[11]]
    assert adapter.report.left_out[("call", Reason.NO_TOKEN_IDS)] == 1
