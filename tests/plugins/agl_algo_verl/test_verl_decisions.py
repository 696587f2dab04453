"""Decisions on rollouts, for every option."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_algo_verl import VERLConfig
from agl_algo_verl.decisions import Decision, Limits, Reason, decide
from agl_algo_verl.rows import Row

LIMITS = Limits(max_prompt=4, max_response=8)
GOOD = Row([1], [2, 3], [1, 1], [-0.5, -0.5], (1, 1))
LONG = Row([1], list(range(9)), [1] * 9, [0.0] * 9, (1, 1))
LONG_PROMPT = Row([1] * 5, [2], [1], [0.0], (1, 1))
BLIND = Row([1], [2], [1], None, (1, 1))
COOL, GREEDY = (replace(GOOD, otherwise=(f"temperature={t}",)) for t in (0.7, 0))


def decision(*rows: Row, status: Any = "succeeded", reward: Any = 1.0, **more: Any) -> Decision:
    may_retry = more.pop("may_retry", False)
    limits = more.pop("limits", LIMITS)
    options = VERLConfig(**more)
    return decide(status, reward, rows, limits=limits, options=options, may_retry=may_retry)


class TestGood:
    def test_it_is_kept_with_its_reward(self):
        found = decision(GOOD, GOOD, reward=0.25)
        assert (found.action, found.rows, found.reward, found.reason) == (
            ("keep", [GOOD, GOOD], 0.25, None)
        )

    def test_no_reward_counts_as_the_one_configured(self):
        assert decision(GOOD, reward=None, missing_reward=-1.0).reward == -1.0

    def test_no_reward_can_be_a_failure(self):
        found = decision(GOOD, reward=None, missing_reward=None)
        assert (found.action, found.reason) == ("drop", Reason.NO_REWARD)


class TestFailed:
    def test_it_is_tried_again_while_it_may(self):
        found = decision(GOOD, status="failed", on_failed="retry", may_retry=True)
        assert (found.action, found.reason, found.rows) == ("retry", Reason.FAILED, ())
        assert decision(GOOD, status="failed", on_failed="retry").action == "drop"

    def test_it_is_dropped(self):
        found = decision(GOOD, status="failed", on_failed="drop", may_retry=True)
        assert (found.action, found.rows) == ("drop", ())

    def test_it_is_penalised(self):
        found = decision(GOOD, LONG, status="failed", on_failed="penalise", penalty=-2.0)
        assert (found.action, found.reward, found.penalised) == ("keep", -2.0, True)
        assert [len(row.response_ids) for row in found.rows] == [2, 8]

    def test_without_rows_no_row_is_penalised(self):
        found = decision(status="failed", on_failed="penalise", penalty=-2.0)
        assert (found.action, found.reason) == ("drop", Reason.FAILED)

    def test_one_without_rows_failed(self):
        found = decision(on_failed="retry", may_retry=True)
        assert (found.action, found.reason) == ("retry", Reason.NO_ROWS)

    def test_a_cancelled_one_is_not_tried_again(self):
        found = decision(GOOD, status="cancelled", on_failed="retry", may_retry=True)
        assert (found.action, found.reason) == ("drop", Reason.CANCELLED)


class TestLogprobs:
    def test_rows_without_are_left_out_and_counted(self):
        found = decision(GOOD, BLIND)
        assert (found.action, found.rows, found.without_logprobs) == ("keep", [GOOD], 1)

    def test_nothing_with_them_is_a_failure(self):
        assert decision(BLIND).reason is Reason.NO_LOGPROBS

    def test_it_is_not_tried_again(self):
        assert decision(BLIND, on_failed="retry", may_retry=True).action == "drop"

    def test_they_need_not_be_there(self):
        limits = Limits(4, 8, needs_logprobs=False)
        found = decision(BLIND, GOOD, limits=limits)
        assert [row.logprobs for row in found.rows] == [None, None]


class TestOtherSampling:
    @pytest.mark.parametrize("row", [COOL, GREEDY])
    @pytest.mark.parametrize("on_failed", ["retry", "penalise"])
    def test_it_is_dropped_and_not_tried_again(self, row: Row, on_failed: Any):
        for needs_logprobs in (True, False):
            limits = Limits(4, 8, needs_logprobs=needs_logprobs)
            found = decision(GOOD, row, on_failed=on_failed, may_retry=True, limits=limits)
            assert (found.action, found.reason) == ("drop", Reason.OTHER_SAMPLING)
            assert found.otherwise == row.otherwise

    def test_a_failed_one_may_do_better_but_is_not_penalised(self):
        for on_failed, action in (("retry", "retry"), ("penalise", "drop")):
            found = decision(COOL, status="failed", on_failed=on_failed, may_retry=True)
            assert (found.action, found.reason) == (action, Reason.FAILED)


class TestOverlong:
    def test_its_rows_are_dropped_and_the_others_kept(self):
        found = decision(GOOD, LONG, LONG_PROMPT, reward=0.5, on_overlong="drop")
        assert (found.action, found.rows, found.reward) == ("keep", [GOOD], 0.5)
        assert (found.fit.prompt_too_long, found.fit.response_too_long) == (1, 1)
        assert found.reason is Reason.OVERLONG

    def test_without_others_it_is_dropped(self):
        assert decision(LONG, on_overlong="drop").action == "drop"

    def test_it_is_tried_again_while_it_may(self):
        assert decision(GOOD, LONG, on_overlong="retry", may_retry=True).action == "retry"
        assert decision(GOOD, LONG, on_overlong="retry").rows == [GOOD]

    def test_it_is_cut_and_penalised(self):
        found = decision(GOOD, LONG, reward=1.0, on_overlong="penalise", penalty=-1.0)
        assert [len(row.response_ids) for row in found.rows] == [2, 8]
        assert (found.reward, found.penalised) == (-1.0, True)


@given(
    st.lists(st.sampled_from([GOOD, LONG, LONG_PROMPT, BLIND, COOL])),
    st.sampled_from(["succeeded", "failed", "cancelled"]),
    st.sampled_from([None, 0.5]),
    st.sampled_from(["retry", "drop", "penalise"]),
    st.sampled_from(["retry", "drop", "penalise"]),
    st.booleans(),
)
def test_what_is_kept_can_be_trained_on_and_the_rest_is_named(
    rows, status, reward, on_failed, on_overlong, may_retry
):
    found = decision(
        *rows,
        status=status,
        reward=reward,
        on_failed=on_failed,
        on_overlong=on_overlong,
        may_retry=may_retry,
    )
    assert bool(found.rows) == (found.action == "keep")
    assert all(row.logprobs is not None for row in found.rows)
    assert not any(row.otherwise for row in found.rows)
    assert all(len(r.prompt_ids) <= 4 and len(r.response_ids) <= 8 for r in found.rows)
    assert found.action == "keep" or found.reason is not None
    if found.action == "keep" and len(found.rows) < len(rows):
        assert found.fit.over or found.without_logprobs
    if found.action == "retry":
        assert may_retry
