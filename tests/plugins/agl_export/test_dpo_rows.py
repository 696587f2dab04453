"""Pairs of a DPO dataset."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, strategies as st

from agl_export import DpoOptions, ExportReport, Sample, Skip, dpo_rows

from .recorded import TOOLS, answered, call, called, result, said, sample, user


def build(*samples: Sample, **options: Any) -> tuple[list[dict[str, Any]], ExportReport]:
    report = ExportReport(rollouts=len(samples))
    rows = dpo_rows(samples, DpoOptions(**options), report)
    assert report.rollouts == report.used + report.left_out.total()
    return rows, report


def rewards(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(row["reward_chosen"], row["reward_rejected"]) for row in rows]


def test_a_pair_holds_both_answers_and_their_origin():
    worse, better = answered(0.0, "5"), answered(1.0, "4")
    (row,), report = build(worse, better)
    assert row == {
        "prompt": [user("2+2?")],
        "chosen": [said("4")],
        "rejected": [said("5")],
        "reward_chosen": 1.0,
        "reward_rejected": 0.0,
        "task": "task",
        "rollout_chosen": better.rollout_id,
        "rollout_rejected": worse.rollout_id,
    }
    assert report.used == 2


def test_the_best_and_the_worst_or_all():
    samples = [answered(value, f"{value}") for value in (0.5, 1.0, 0.0)]
    rows, report = build(*samples)
    assert rewards(rows) == [(1.0, 0.0)]
    assert report.left_out == {Skip.TOO_MANY: 1}
    rows, report = build(*samples, pairs="all")
    assert rewards(rows) == [(1.0, 0.0), (1.0, 0.5), (0.5, 0.0)]
    assert report.used == 3
    rows, _ = build(*samples, pairs="all", max_pairs=2)
    assert rewards(rows) == [(1.0, 0.0), (1.0, 0.5)]
    rows, report = build(*samples, pairs="all", margin=0.6)
    assert rewards(rows) == [(1.0, 0.0)]
    assert report.left_out == {Skip.NO_PARTNER: 1}
    assert build(*samples, min_reward=1.5)[0] == []


def test_a_difference_that_equals_the_margin_is_enough():
    for better, worse, margin in ((1.0, 0.9, 0.1), (0.8, 0.1, 0.7), (1.0, 0.5, 0.5)):
        assert len(build(answered(better, "a"), answered(worse, "b"), margin=margin)[0]) == 1


def test_equal_rewards_make_no_pair():
    rows, report = build(answered(1.0, "a"), answered(1.0, "b"))
    assert rows == []
    assert report.left_out == {Skip.NO_PARTNER: 2}


def test_the_next_widest_pair_replaces_an_unusable_one():
    samples = [answered(1.0, "a"), answered(0.5, "b"), answered(0.0, "a")]
    rows, report = build(*samples)
    assert rewards(rows) == [(1.0, 0.5)]
    assert report.used == 2
    assert report.left_out == {Skip.TOO_MANY: 1}
    rows, report = build(samples[0], samples[2])
    assert rows == []
    assert report.left_out == {Skip.SAME: 2}


def two_turns(value: float, argument: int, answer: str, told: str = "4", id: str = "c") -> Sample:
    first = [user("2+2?")]
    asked = called({"a": argument}, id)
    second = [*first, asked, result(told, id)]
    return sample(value, call(first, asked, tools=True), call(second, said(answer), tools=True))


def test_a_pair_starts_at_the_first_turn_that_differs():
    (row,), _ = build(two_turns(1.0, 2, "4", id="x"), two_turns(0.0, 2, "5", id="y"))
    assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "tool"]
    assert row["prompt"][1]["tool_calls"][0]["function"]["arguments"] == {"a": 2}
    assert (row["chosen"], row["rejected"]) == ([said("4")], [said("5")])
    assert row["tools"] == TOOLS

    (row,), _ = build(two_turns(1.0, 2, "4"), two_turns(0.0, 3, "5"), tool_arguments="text")
    assert row["prompt"] == [user("2+2?")]
    arguments = [
        side[0]["tool_calls"][0]["function"]["arguments"]
        for side in (row["chosen"], row["rejected"])
    ]
    assert arguments == ['{"a": 2}', '{"a": 3}']
    assert len(row["chosen"]) == len(row["rejected"]) == 1

    (row,), _ = build(two_turns(1.0, 2, "4"), two_turns(0.0, 3, "5"), completion="rest")
    assert [message["role"] for message in row["chosen"]] == ["assistant", "tool", "assistant"]
    assert row["rejected"][-1] == said("5")


def test_rollouts_that_first_differ_in_a_tool_result_are_not_a_pair():
    rows, report = build(two_turns(1.0, 2, "4", told="4"), two_turns(0.0, 2, "5", told="5"))
    assert rows == []
    assert report.left_out == {Skip.NO_FORK: 2}
    rows, _ = build(answered(1.0, "4", "2+2?"), answered(0.0, "4", "3+1?"))
    assert rows == []


def test_rewards_that_cannot_be_compared():
    rows, report = build(answered(None, "a"), answered(math.inf, "b"), answered(1.0, "c"))
    assert rows == []
    assert report.left_out == {Skip.NO_REWARD: 1, Skip.NOT_A_NUMBER: 1, Skip.NO_PARTNER: 1}


def tokens(value: float, *calls: tuple[list[int], list[int]]) -> Sample:
    return sample(
        value,
        *(call([user("?")], said("!"), prompt_ids=sent, response_ids=got) for sent, got in calls),
    )


def test_tokens():
    better = tokens(1.0, ([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6, 7]))
    worse = tokens(0.0, ([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [8]), ([1, 2, 3, 4, 5, 8, 9], [10]))
    (row,), _ = build(better, worse, form="tokens")
    assert [row[name] for name in ("prompt_ids", "chosen_ids", "rejected_ids")] == [
        [1, 2, 3, 4, 5],
        [6, 7],
        [8],
    ]
    (row,), _ = build(better, worse, form="tokens", completion="rest")
    assert row["rejected_ids"] == [8, 9, 10]


def test_tokens_that_do_not_fork_in_a_response_make_no_pair():
    better = tokens(1.0, ([1, 2], [3]), ([1, 2, 3, 5], [6]))
    for worse, reason in (
        (tokens(0.0, ([1, 2], [3]), ([1, 2, 3, 9], [7])), Skip.NO_FORK),
        (tokens(0.0, ([1, 9], [4])), Skip.NO_FORK),
        (tokens(0.0, ([1, 2], [3])), Skip.NO_FORK),
        (tokens(0.0, ([1, 2], [3]), ([1, 2, 3, 5], [6])), Skip.SAME),
        (answered(0.0, "x"), Skip.NO_TOKEN_IDS),
    ):
        rows, report = build(better, worse, form="tokens")
        assert rows == []
        assert report.left_out[reason] >= 1


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 3), st.sampled_from("abc")), max_size=7),
    st.sampled_from(["best-worst", "all"]),
    st.integers(0, 2),
    st.none() | st.integers(1, 3),
)
def test_every_rollout_is_counted_once_and_every_pair_holds(told, pairs, margin, max_pairs):
    samples = [answered(value, text) for value, text in told]
    rows, report = build(*samples, pairs=pairs, margin=margin, max_pairs=max_pairs)
    assert len(rows) <= (1 if pairs == "best-worst" else max_pairs or 21)
    for row in rows:
        assert row["reward_chosen"] > row["reward_rejected"]
        assert row["reward_chosen"] - row["reward_rejected"] >= margin
        assert row["chosen"] != row["rejected"]
    possible = any(
        one[0] is not None
        and other[0] is not None
        and one[0] - other[0] >= max(margin, 1)
        and one[1] != other[1]
        for one in told
        for other in told
    )
    assert bool(rows) == possible
    assert report.used == len(
        {row[k] for row in rows for k in ("rollout_chosen", "rollout_rejected")}
    )
