"""Adapters that join calls to rows."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from agl_core.adapter import Adapter
from agl_testing.adapter.base import AdapterTests
from agl_testing.suite import requires
from agl_testing.traces import token_trace

__all__ = ["RowTests"]

Rows = Adapter[Any, list[Any]]
"""An adapter that makes rows like ``agl_adapter_trajectory.TrajectoryRow``."""

CONTINUED = [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6])]


class RowTests(AdapterTests):
    """Rows have the tokens that the model saw, and train on those that it sampled, once."""

    @requires("rows")
    def test_calls_that_continue_each_other_are_one_row(self, adapter: Rows):
        spans = token_trace(CONTINUED)
        (row,), report = adapter.adapt_with_report(spans)
        assert row.token_ids == [1, 2, 3, 4, 5, 6]
        assert row.mask == [0, 0, 1, 1, 0, 1]
        assert row.logprobs == [0.0, 0.0, -3.5, -4.5, 0.0, -6.5]
        assert row.prompt_length == 2
        assert list(row.responses) == [(2, 4), (5, 6)]
        assert row.rewards == [0.0, 1.0]
        assert row.reward == 1.0
        assert row.span_ids == [spans[1].span_id, spans[3].span_id]
        assert row.agent == "helper"
        assert row.certificate.ids_present
        assert row.certificate.logprobs_present
        assert row.certificate.break_cause is None
        assert report.left_out == {}

    @requires("rows")
    def test_a_prompt_that_differs_starts_a_row(self, adapter: Rows):
        rows = adapter.adapt(token_trace([*CONTINUED, ([1, 2, 9], [7, 8])]))
        assert [row.token_ids for row in rows] == [[1, 2, 3, 4, 5, 6], [1, 2, 9, 7, 8]]
        assert [row.mask for row in rows] == [[0, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1]]
        assert rows[1].logprobs == [0.0, 0.0, 0.0, -7.5, -8.5]
        assert rows[1].prompt_length == 3
        assert rows[1].rewards == [2.0]
        certificate = rows[1].certificate
        assert certificate.break_cause is not None
        assert (certificate.broken_from, certificate.broken_at) == (0, 2)

    @requires("rows")
    def test_no_token_is_trained_on_twice(self, adapter: Rows):
        turns = [*CONTINUED, ([1, 2, 3, 4, 9], [7]), ([1, 2, 3, 4, 9, 7, 9], [8])]
        rows = adapter.adapt(token_trace(turns))
        sampled = [
            token
            for row in rows
            for token, trained in zip(row.token_ids, row.mask, strict=True)
            if trained
        ]
        assert sorted(sampled) == [3, 4, 6, 7, 8]
        for row in rows:
            assert len(row.token_ids) == len(row.mask) == len(row.logprobs)
            assert all(p == 0.0 for p, m in zip(row.logprobs, row.mask, strict=True) if not m)
            spans = [range(*bounds) for bounds in row.responses]
            trained = [index for index, m in enumerate(row.mask) if m]
            assert trained == [index for positions in spans for index in positions]

    @requires("rows")
    def test_missing_logprobs_are_said(self, adapter: Rows):
        spans = token_trace(CONTINUED)
        spans[3].attributes.pop("logprobs.content")
        (row,) = adapter.adapt(spans)
        assert not row.certificate.logprobs_present
        assert row.logprobs == [0.0, 0.0, -3.5, -4.5, 0.0, 0.0]
        assert row.mask == [0, 0, 1, 1, 0, 1]

    @requires("rows")
    def test_a_call_without_ids_is_counted_and_said(self, adapter: Rows):
        spans = token_trace([*CONTINUED, ([1, 2, 3, 4, 5, 6, 7, 8, 9], [10])])
        spans[3].attributes.pop("response_token_ids")
        (row,), report = adapter.adapt_with_report(spans)
        assert report.count("call") == 1
        assert not row.certificate.ids_present
        assert row.token_ids == [*range(1, 11)]
        assert row.mask == [0, 0, 1, 1, 0, 0, 0, 0, 0, 1]

    @requires("rows")
    @pytest.mark.parametrize("rewarded", [0, 1])
    def test_a_reward_belongs_to_its_call(self, adapter: Rows, rewarded: int):
        spans = token_trace(CONTINUED)
        del spans[4 if rewarded == 0 else 2]
        (row,) = adapter.adapt(spans)
        assert row.rewards == ([0.0, None] if rewarded == 0 else [None, 1.0])
        assert row.reward == float(rewarded)

    @requires("rows")
    def test_rows_travel(self, adapter: Rows):
        rows = adapter.adapt(token_trace(CONTINUED))
        assert pickle.loads(pickle.dumps(rows)) == rows
