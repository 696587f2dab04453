"""Rows of an SFT dataset: best of n."""

from __future__ import annotations

import math
from typing import Any

from agl_core.emitter import operation
from agl_export import ExportReport, Sample, SftOptions, Skip, sft_rows
from agl_tracer_otel import OtelTracer

from .recorded import TOOLS, answered, call, called, result, said, sample, user


def build(*samples: Sample, **options: Any) -> tuple[list[dict[str, Any]], ExportReport]:
    report = ExportReport(rollouts=len(samples))
    rows = sft_rows(samples, SftOptions(**options), report)
    assert report.rollouts == report.used + report.left_out.total()
    return rows, report


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return [row["messages"][-1]["content"] for row in rows]


def test_a_row_holds_the_conversation_and_its_origin():
    one = answered(0.5, "4")
    (row,), report = build(one)
    assert row == {
        "messages": [user("2+2?"), said("4")],
        "reward": 0.5,
        "task": "task",
        "rollout_id": one.rollout_id,
        "attempt_id": one.attempt_id,
        "parent_id": None,
        "turn": None,
    }
    assert report.used == 1


def test_tools_and_tool_calls():
    first = [user("2+2?")]
    second = [*first, called({"a": 2}), result("4")]
    both = sample(
        1.0,
        call(first, called({"a": 2}), tools=True),
        call(second, said("4"), tools=True),
    )
    (row,), _ = build(both)
    assert row["tools"] == TOOLS
    roles = [message["role"] for message in row["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert row["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": 2}
    (row,), _ = build(both, tool_arguments="text")
    assert row["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": 2}'


async def test_an_answer_without_content_is_not_the_word_null():
    """As OpenAI answers with a tool call, recorded by the agent itself."""

    @operation(name="chat")
    def chat(messages: list[Any], message: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [{"index": 0, "message": message}]}

    tracer = OtelTracer()
    with tracer.lifespan():
        async with tracer.trace_context():
            first, call_of_tool = [user("2+2?")], called({"a": 2})
            chat(first, call_of_tool)
            chat([*first, call_of_tool, result("4")], said("4"))
            spans = tracer.get_last_trace()
    (row,), _ = build(sample(1.0, *spans))
    contents = [message.get("content") for message in row["messages"]]
    assert contents == ["2+2?", None, "4", "4"]


def test_the_best_of_a_task():
    samples = [answered(value, text) for value, text in ((0.2, "c"), (0.9, "a"), (0.5, "b"))]
    rows, report = build(*samples, best=2)
    assert texts(rows) == ["a", "b"]
    assert report.left_out == {Skip.NOT_BEST: 1}


def test_equal_content_is_used_once():
    samples = [answered(0.5, "a"), answered(0.9, "a"), answered(0.4, "b"), answered(0.1, "c")]
    rows, report = build(*samples, best=2)
    assert [(row["reward"], row["messages"][-1]["content"]) for row in rows] == [
        (0.9, "a"),
        (0.4, "b"),
    ]
    assert report.left_out == {Skip.DUPLICATE: 1, Skip.NOT_BEST: 1}
    rows, _ = build(*samples, best=2, keep_duplicates=True)
    assert [row["reward"] for row in rows] == [0.9, 0.5]


def test_equal_rewards_keep_their_order():
    rows, _ = build(answered(1.0, "first"), answered(1.0, "second"), best=1)
    assert texts(rows) == ["first"]


def test_thresholds_and_rewards_that_are_missing():
    samples = [answered(value, f"{value}") for value in (0.5, 0.49, None, math.nan)]
    rows, report = build(*samples, min_reward=0.5)
    assert texts(rows) == ["0.5"]
    assert report.left_out == {Skip.BELOW: 1, Skip.NO_REWARD: 1, Skip.NOT_A_NUMBER: 1}
    rows, report = build(*samples)
    assert texts(rows) == ["0.5", "0.49", "None"]  # without a threshold a reward is optional
    assert report.left_out == {Skip.NOT_A_NUMBER: 1}
    rows, report = build(*samples, best=4)  # but what has none cannot be among the best
    assert texts(rows) == ["0.5", "0.49"]
    assert report.left_out == {Skip.NO_REWARD: 1, Skip.NOT_A_NUMBER: 1}


def test_the_next_best_rollout_replaces_an_unusable_one():
    empty = sample(1.0, *answered(1.0, "x").spans)
    del empty.spans[0].attributes["gen_ai.input.messages"]
    del empty.spans[0].attributes["gen_ai.output.messages"]
    broken = answered(0.9, "x")
    broken.spans[0].attributes["gen_ai.input.messages"] = "7"
    rows, report = build(empty, broken, answered(0.1, "good"), best=1)
    assert texts(rows) == ["good"]
    assert report.left_out == {Skip.NO_MESSAGES: 1, Skip.UNREADABLE: 1}


def tokens(value: float, *calls: tuple[list[int], list[int]]) -> Sample:
    return sample(
        value,
        *(call([user("?")], said("!"), prompt_ids=sent, response_ids=got) for sent, got in calls),
    )


def test_labels_mark_the_tokens_that_the_model_sampled():
    two_turns = tokens(1.0, ([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6]))
    (row,), _ = build(two_turns, form="tokens")
    assert row == {
        "input_ids": [1, 2, 3, 4, 5, 6],
        "labels": [-100, -100, 3, 4, -100, 6],
        "reward": 1.0,
        "task": "task",
        "rollout_id": two_turns.rollout_id,
        "attempt_id": two_turns.attempt_id,
        "parent_id": None,
        "turn": None,
        "agent": "*",
        "ids_present": True,
        "logprobs_present": False,
        "models": ["tiny"],
        "altered_sampling": [],
        "model_versions": [],
        "break_cause": None,
    }


def test_a_history_that_was_edited_is_two_rows():
    edited = tokens(1.0, ([1, 2], [3, 4]), ([1, 9, 3, 4, 5], [6]))
    rows, report = build(edited, form="tokens")
    assert [row["labels"] for row in rows] == [
        [-100, -100, 3, 4],
        [-100, -100, -100, -100, -100, 6],
    ]
    assert rows[1]["break_cause"] == "history edited"
    assert report.used == 1


def test_rollouts_without_token_ids_have_no_such_rows():
    rows, report = build(answered(1.0, "4"), form="tokens")
    assert rows == []
    assert report.left_out == {Skip.NO_TOKEN_IDS: 1}
    assert report.adapters.count("call") == 1


def test_what_the_adapters_leave_out_is_counted_of_every_rollout_that_was_read():
    """Of the second one too, a duplicate: it says why a rollout is shorter than it was."""
    halves = [
        sample(
            1.0,
            call([user("?")], said("!"), prompt_ids=[1, 2], response_ids=[3]),
            call([user("2+2?")], said("4")),
        )
        for _ in range(2)
    ]
    rows, report = build(*halves, form="tokens")
    assert len(rows) == report.used == 1
    assert report.left_out == {Skip.DUPLICATE: 1}
    assert report.adapters.count("call") == 2
