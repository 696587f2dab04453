"""Rows of an RL dataset: tokens, masks, log-probabilities and rewards."""

from __future__ import annotations

from typing import Any

import pytest

from agl_export import ExportReport, RlOptions, Sample, Skip, rl_rows

from .recorded import answered, call, reward, said, sample, user


def build(*samples: Sample, **options: Any) -> tuple[list[dict[str, Any]], ExportReport]:
    report = ExportReport(rollouts=len(samples))
    rows = rl_rows(samples, RlOptions(**options), report)
    assert report.rollouts == report.used + report.left_out.total()
    return rows, report


def turns(*, logprobs: bool = True, gap: bool = False) -> Sample:
    def turn(sent: list[int], got: list[int]) -> Any:
        given = [-0.5 * number for number in range(len(got))] if logprobs else None
        return call([user("?")], said("!"), prompt_ids=sent, response_ids=got, logprobs=given)

    spans = [turn([1, 2], [3, 4])]
    if gap:
        spans.append(call([user("?")], said("no ids")))
    return sample(1.0, *spans, turn([1, 2, 3, 4, 5], [6]), reward(1.0))


def test_a_trajectory():
    one = turns()
    (row,), report = build(one)
    assert row == {
        "input_ids": [1, 2, 3, 4, 5, 6],
        "mask": [0, 0, 1, 1, 0, 1],
        "logprobs": [0.0, 0.0, 0.0, -0.5, 0.0, 0.0],
        "prompt_length": 2,
        "responses": [[2, 4], [5, 6]],
        "call_rewards": [None, 1.0],
        "reward": 1.0,
        "task": "task",
        "rollout_id": one.rollout_id,
        "attempt_id": one.attempt_id,
        "parent_id": None,
        "turn": None,
        "agent": "*",
        "ids_present": True,
        "logprobs_present": True,
        "models": ["tiny"],
        "altered_sampling": [],
        "model_versions": [],
        "break_cause": None,
    }
    assert report.used == 1


def test_triplets():
    one = turns()
    rows, _ = build(one, form="triplets")
    assert [
        (r["prompt_ids"], r["response_ids"], r["logprobs"], r["call_reward"]) for r in rows
    ] == [
        ([1, 2], [3, 4], [0.0, -0.5], None),
        ([1, 2, 3, 4, 5], [6], [0.0], 1.0),
    ]
    assert {row["reward"] for row in rows} == {1.0}
    (row, _), _ = build(turns(logprobs=False), form="triplets")
    assert row["logprobs"] is None


@pytest.mark.parametrize("own_id", [True, False])
def test_triplets_say_what_their_log_probabilities_do_not_know(own_id: bool):
    penalty: dict[str, Any] = {
        "gen_ai.request.presence_penalty": 0.5,
        "gen_ai.request.temperature": 0.7,
    }
    one = sample(
        1.0,
        call([user("?")], said("!"), prompt_ids=[1, 2], response_ids=[3], **penalty),
        call([user("?")], said("!"), prompt_ids=[1, 5], response_ids=[6]),
    )
    if not own_id:
        for span in one.spans:
            del span.attributes["gen_ai.response.id"]
    rows, _ = build(one, form="triplets")
    last = [] if own_id else ["presence_penalty"]  # it is not known which call asked for it
    assert [row["altered_sampling"] for row in rows] == [["presence_penalty"], last]


def test_incomplete_certificates_can_be_refused():
    for form in ("trajectory", "triplets"):
        rows, report = build(turns(logprobs=False), turns(), form=form, require_logprobs=True)
        assert {row["logprobs"] is not None for row in rows} == {True}
        assert report.left_out == {Skip.NO_LOGPROBS: 1}
    (row,), _ = build(turns(gap=True))
    assert not row["ids_present"]
    for form, count in (("trajectory", 1), ("triplets", 2)):
        rows, report = build(turns(gap=True), turns(), form=form, require_ids=True)
        assert len(rows) == count
        assert report.left_out == {Skip.GAP: 1}


def test_rollouts_without_rewards_or_ids():
    none, below = turns(), turns()
    none = Sample(none.rollout_id, none.attempt_id, "t", None, none.spans)
    below = Sample(below.rollout_id, below.attempt_id, "t", 0.1, below.spans)
    for form in ("trajectory", "triplets"):
        rows, report = build(none, below, answered(1.0, "x"), form=form, min_reward=0.5)
        assert rows == []
        assert report.left_out == {Skip.NO_REWARD: 1, Skip.BELOW: 1, Skip.NO_TOKEN_IDS: 1}
