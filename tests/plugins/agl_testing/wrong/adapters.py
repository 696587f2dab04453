"""Adapters that are wrong in one way each."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

from agl_adapters import TracerTraceToTriplet
from agl_core.adapter import AdapterReport, read_reward


class Base(TracerTraceToTriplet):
    CAUGHT_BY = ""


class RemembersTheLastTrace(Base):
    CAUGHT_BY = "test_the_same_trace_gives_the_same_result"

    def __init__(self) -> None:
        super().__init__()
        self.seen: list = []

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        self.seen = [*self.seen, *triplets]
        return list(self.seen), report


class ChangesItsSource(Base):
    CAUGHT_BY = "test_it_leaves_its_source_alone"

    def adapt_with_report(self, source: Any, /):
        result = super().adapt_with_report(source)
        for span in source:
            span.attributes.pop("prompt_token_ids", None)
        return result


class GivesTheRewardToTheNextCall(Base):
    CAUGHT_BY = "test_each_call_becomes_a_triplet_with_its_tokens_and_reward"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        rewards = [None, *(triplet.reward for triplet in triplets)]
        moved = [
            t.model_copy(update={"reward": r}) for t, r in zip(triplets, rewards, strict=False)
        ]
        return moved, report


class DropsSilently(Base):
    CAUGHT_BY = "test_a_call_that_was_seen_twice_counts_once"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        report = copy.copy(report)
        report.left_out = {}
        return triplets, report


class ComparesEachWithEach(Base):
    CAUGHT_BY = "test_its_cost_is_linear"

    def adapt_with_report(self, source: Any, /):
        ids = [span.span_id for span in source]
        unique = [
            span
            for at, span in enumerate(source)
            if not any(known == span.span_id for known in ids[:at])
        ]
        return super().adapt_with_report(unique)


class CannotTravel(Base):
    CAUGHT_BY = "test_it_can_be_pickled"

    def __getstate__(self):
        raise pickle.PicklingError("it holds a connection")


class WorksInItself(Base):
    CAUGHT_BY = "test_threads_may_share_it"

    def adapt_with_report(self, source: Any, /):
        self.source = source
        time.sleep(0.005)  # lets another thread run
        return super().adapt_with_report(self.source)


class MatchesRewardsByPosition(Base):
    CAUGHT_BY = "test_the_order_of_the_source_decides_nothing_but_the_order"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        rewards = [reward for span in source if (reward := read_reward(span)) is not None]
        for triplet, reward in zip(triplets, rewards, strict=False):
            triplet.reward = reward
        return triplets, report


class DropsUnreadableRewards(Base):
    CAUGHT_BY = "test_rewards_and_calls_are_all_accounted_for"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        report.left_out = {key: n for key, n in report.left_out.items() if key[0] != "reward"}
        return triplets, report


class GivesTheLastRewardOnly(Base):
    CAUGHT_BY = "test_two_rewards_after_two_calls_reach_both"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        for triplet in triplets[:-1]:
            triplet.reward = None
        return triplets, report


class RepairsSilently(Base):
    CAUGHT_BY = "test_token_ids_that_cannot_be_are_not_used"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        report.repaired = {}
        return triplets, report


class ForgetsLogprobs(Base):
    CAUGHT_BY = "test_triplets_have_text_and_logprobs"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        for triplet in triplets:
            triplet.response["logprobs"] = []
        return triplets, report


class NeedsEveryParent(Base):
    CAUGHT_BY = "test_a_parent_that_is_missing_loses_no_call"

    def adapt_with_report(self, source: Any, /):
        ids = {span.span_id for span in source}
        kept = [span for span in source if span.parent_id in ids or span.parent_id is None]
        return super().adapt_with_report(kept) if kept else ([], AdapterReport())
