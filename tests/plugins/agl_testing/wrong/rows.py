"""Adapters whose rows are wrong in one way each."""

from __future__ import annotations

from typing import Any

from agl_adapter_trajectory import TraceToTrajectory


class Base(TraceToTrajectory):
    CAUGHT_BY = ""

    def adapt_with_report(self, source: Any, /):
        rows, report = super().adapt_with_report(source)
        for row in rows:
            self.spoil(row)
        return rows, report

    def spoil(self, row: Any) -> None:
        """Change a row."""


class TrainsOnThePrompt(Base):
    CAUGHT_BY = "test_calls_that_continue_each_other_are_one_row"

    def spoil(self, row):
        row.mask = [1] * len(row.mask)


class ShiftsTheLogprobs(Base):
    CAUGHT_BY = "test_calls_that_continue_each_other_are_one_row"

    def spoil(self, row):
        row.logprobs = [*row.logprobs[1:], 0.0]


class TrainsOnRepeatedTokens(Base):
    CAUGHT_BY = "test_no_token_is_trained_on_twice"

    def spoil(self, row):
        if row.certificate.broken_from is not None:
            row.mask = [0, 0, *[1] * (len(row.mask) - 2)]


class HidesTheBreak(Base):
    CAUGHT_BY = "test_a_prompt_that_differs_starts_a_row"

    def spoil(self, row):
        row.certificate.break_cause = None


class InventsLogprobs(Base):
    CAUGHT_BY = "test_missing_logprobs_are_said"

    def spoil(self, row):
        row.certificate.logprobs_present = True


class DropsCallsSilently(Base):
    CAUGHT_BY = "test_a_call_without_ids_is_counted_and_said"

    def adapt_with_report(self, source: Any, /):
        rows, report = super().adapt_with_report(source)
        report.left_out = {}
        return rows, report


class RewardsEveryCall(Base):
    CAUGHT_BY = "test_a_reward_belongs_to_its_call"

    def spoil(self, row):
        row.rewards = [row.reward] * len(row.rewards)
