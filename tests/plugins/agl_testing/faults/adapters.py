"""Faults of adapters: of triplets, of conversations, of rows, and of a form of their own."""

from __future__ import annotations

import copy
import math
from typing import Any

from agl_adapter_trajectory import TraceToTrajectory
from agl_adapters import TracerTraceToTriplet, TraceToMessages
from agl_core.adapter import AdapterReport, TraceAdapter, read_reward

ANSWER = "gen_ai.completion.0."


class Answers(TraceAdapter[list]):
    """A good adapter of a form of its own: pairs each answer with the reward after it."""

    SUITE, FIXTURE, FLAGS = "AdapterSuite", "adapter", ("empty",)
    CAUGHT_BY = ""

    def adapt_with_report(self, source: Any, /):
        report = AdapterReport(spans=len(source))
        answers: list[Any] = []
        for span in sorted(source, key=lambda span: span.sequence_id):
            if isinstance(text := span.attributes.get(ANSWER + "content"), str):
                answers.append((text, None))
            elif any(key.startswith(ANSWER) for key in span.attributes):
                report.leave_out("call", "without text")
            elif (reward := read_reward(span)) is not None:
                if answers and not math.isnan(reward):
                    answers[-1] = (answers[-1][0], reward)
                else:
                    report.leave_out("reward", "unreadable, or of no answer")
        report.produce("answers", len(answers))
        return answers, report


class Triplets(TracerTraceToTriplet):
    SUITE, FIXTURE, FLAGS = "AdapterSuite", "adapter", ("triplets", "logprobs")
    CAUGHT_BY = ""


class Messages(TraceToMessages):
    SUITE, FIXTURE, FLAGS = "AdapterSuite", "adapter", ("messages", "empty")
    CAUGHT_BY = ""


class Rows(TraceToTrajectory):
    SUITE, FIXTURE, FLAGS = "AdapterSuite", "adapter", ("rows",)
    CAUGHT_BY = ""


GOOD = (Answers, Triplets, Messages, Rows)


def produced(results: list[Any], report: AdapterReport) -> tuple[list[Any], AdapterReport]:
    """Return results with a report that agrees with them."""
    report = copy.copy(report)
    report.produced = {item: len(results) for item in report.produced}
    return results, report


# -- results that are always empty ----------------------------------------------------------------


class AlwaysEmpty(Answers):
    """It returns [] whatever it gets."""

    CAUGHT_BY = "test_a_trace_of_calls_gives_a_result"

    def adapt_with_report(self, source: Any, /):
        return [], AdapterReport(spans=len(source))


class EmptyTriplets(Triplets):
    """It returns [] and says that everything was left out."""

    CAUGHT_BY = "test_each_call_becomes_a_triplet_with_its_tokens_and_reward"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        report.leave_out("call", "not supported", len(triplets))
        return produced([], report)


class EmptyAfterAnUnknownSpan(Answers):
    """It returns [] for the trace of an agent, whose first span it does not know."""

    CAUGHT_BY = "test_a_trace_of_calls_gives_a_result"

    def adapt_with_report(self, source: Any, /):
        if any(span.name == "agent" for span in source):
            return [], AdapterReport(spans=len(source))
        return super().adapt_with_report(source)


class EmptyOnError(Messages):
    """It hides its own errors behind []: here, for spans without a role."""

    CAUGHT_BY = "test_each_call_becomes_a_conversation"

    def adapt_with_report(self, source: Any, /):
        try:
            for span in source:
                if "gen_ai.completion.0.content" in span.attributes:
                    _ = span.attributes["gen_ai.completion.0.tool_calls"]
            return super().adapt_with_report(source)
        except KeyError:
            return [], AdapterReport(spans=len(source))


# -- errors on what it is for ---------------------------------------------------------------------


class RaisesOnRewards(Answers):
    """It raises when a trace has a reward."""

    CAUGHT_BY = "test_a_trace_of_calls_gives_a_result"

    def adapt_with_report(self, source: Any, /):
        if any(read_reward(span) is not None for span in source):
            raise NotImplementedError("rewards are not supported")
        return super().adapt_with_report(source)


class RaisesOnToolCalls(Messages):
    """It raises when an answer calls a tool."""

    CAUGHT_BY = "test_a_message_without_text_has_the_key"

    def adapt_with_report(self, source: Any, /):
        if any("tool_calls" in key for span in source for key in span.attributes):
            raise ValueError("tool calls are not supported")
        return super().adapt_with_report(source)


class RaisesOnLongTraces(Triplets):
    """It recurses once per span, so that a long trace raises."""

    CAUGHT_BY = "test_the_last_call_of_a_long_trace_counts"

    def adapt_with_report(self, source: Any, /):
        def depth(left: int) -> int:
            return 0 if not left else 1 + depth(left - 1)

        depth(len(source))
        return super().adapt_with_report(source)


class RaisesOnASpanWithoutEnd(Answers):
    """It raises for a span that did not end."""

    CAUGHT_BY = "test_an_odd_trace_is_no_error"

    def adapt_with_report(self, source: Any, /):
        if any(span.end_time is None for span in source):
            raise ValueError("a span has no end")
        return super().adapt_with_report(source)


# -- the second half of long traces ---------------------------------------------------------------


class DropsTheSecondHalf(Answers):
    """It reads the first half of a trace of more than 50 spans."""

    CAUGHT_BY = "test_the_last_call_of_a_long_trace_counts"

    def adapt_with_report(self, source: Any, /):
        kept = source[: len(source) // 2] if len(source) > 50 else source
        answers, report = super().adapt_with_report(kept)
        report.spans = len(source)
        return answers, report


class ReadsAThousandSpans(Messages):
    """It reads the first thousand spans."""

    CAUGHT_BY = "test_the_last_call_of_a_long_trace_counts"

    def adapt_with_report(self, source: Any, /):
        conversations, report = super().adapt_with_report(source[:1000])
        report.spans = len(source)
        return conversations, report


class KeepsAHundredTriplets(Triplets):
    """It keeps a hundred triplets and counts the others nowhere."""

    CAUGHT_BY = "test_the_last_call_of_a_long_trace_counts"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        return produced(triplets[:100], report)


class KeepsTwoHundredRows(Rows):
    """It keeps two hundred rows and counts the others nowhere."""

    CAUGHT_BY = "test_the_last_call_of_a_long_trace_counts"

    def adapt_with_report(self, source: Any, /):
        rows, report = super().adapt_with_report(source)
        return produced(rows[:200], report)


# -- what it leaves out without a word ------------------------------------------------------------


class SkipsEachSecondAnswer(Answers):
    """It keeps one answer of two and counts the others nowhere."""

    CAUGHT_BY = "test_a_turn_that_does_not_matter_is_counted"

    def adapt_with_report(self, source: Any, /):
        answers, report = super().adapt_with_report(source)
        return produced(answers[::2], report)


class DropsAnswersWithoutText(Answers):
    """An answer that calls a tool is left out and counted nowhere."""

    CAUGHT_BY = "test_a_call_that_is_left_out_is_counted"

    def adapt_with_report(self, source: Any, /):
        answers, report = super().adapt_with_report(source)
        report.left_out.clear()
        return answers, report


class PassesUnreadableRewardsOn(Answers):
    """A reward that is not a number is given to its answer."""

    CAUGHT_BY = "test_a_reward_that_is_not_a_number_is_left_out"

    def adapt_with_report(self, source: Any, /):
        answers, report = super().adapt_with_report(source)
        unread = {r for span in source if (r := read_reward(span)) is not None and r != r}
        return [(text, reward if not unread else math.nan) for text, reward in answers], report


# -- what it does to its source -------------------------------------------------------------------


class SortsItsSourceInPlace(Answers):
    """It sorts the caller's list."""

    CAUGHT_BY = "test_it_leaves_the_order_of_its_source_alone"

    def adapt_with_report(self, source: Any, /):
        if isinstance(source, list):
            source.sort(key=lambda span: span.sequence_id)
        return super().adapt_with_report(source)


class SortsSpansByTime(Triplets):
    """It sorts the caller's list by the times of the spans."""

    CAUGHT_BY = "test_it_leaves_the_order_of_its_source_alone"

    def adapt_with_report(self, source: Any, /):
        if isinstance(source, list):
            source.sort(key=lambda span: (span.start_time or 0, span.sequence_id))
        return super().adapt_with_report(source)


class TakesSpansOut(Messages):
    """It removes what it has read from the caller's list."""

    CAUGHT_BY = "test_it_leaves_the_order_of_its_source_alone"

    def adapt_with_report(self, source: Any, /):
        result = super().adapt_with_report(list(source))
        if isinstance(source, list):
            source.clear()
        return result


class WritesIntoSpans(Rows):
    """It leaves a mark in the attributes of the spans."""

    CAUGHT_BY = "test_it_leaves_its_source_alone"

    def adapt_with_report(self, source: Any, /):
        result = super().adapt_with_report(source)
        for span in source:
            span.attributes["seen"] = True
        return result


# -- what is wrong quietly ------------------------------------------------------------------------


class RewardsOfZeroAreNone(Answers):
    """It takes a reward of 0 for no reward."""

    CAUGHT_BY = "test_a_reward_of_zero_is_a_reward"

    def adapt_with_report(self, source: Any, /):
        answers, report = super().adapt_with_report(source)
        return [(text, reward or None) for text, reward in answers], report


class CachesByLength(Answers):
    """It takes a trace of equal length for one that it knows."""

    CAUGHT_BY = "test_the_last_call_of_a_long_trace_counts"

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}

    def adapt_with_report(self, source: Any, /):
        if len(source) not in self.known:
            self.known[len(source)] = super().adapt_with_report(source)
        return self.known[len(source)]


class CutsTexts(Messages):
    """It cuts texts after a thousand characters."""

    CAUGHT_BY = "test_a_long_text_is_whole"

    def adapt_with_report(self, source: Any, /):
        conversations, report = super().adapt_with_report(source)
        for conversation in conversations:
            for message in conversation["messages"]:
                message["content"] = message["content"] and message["content"][:1000]
        return conversations, report


class CutsTokens(Triplets):
    """It cuts responses after 1,024 tokens."""

    CAUGHT_BY = "test_a_long_answer_is_whole"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        for triplet in triplets:
            triplet.response["token_ids"] = triplet.response["token_ids"][:1024]
        return triplets, report


class RoundsLogprobs(Triplets):
    """Log-probabilities have two decimals."""

    CAUGHT_BY = "test_logprobs_and_rewards_are_exact"

    def adapt_with_report(self, source: Any, /):
        triplets, report = super().adapt_with_report(source)
        for triplet in triplets:
            for entry in triplet.response.get("logprobs", ()):
                entry["logprob"] = round(entry["logprob"], 2)
        return triplets, report


class ForgetsWhichCallAToolAnswers(Messages):
    """The result of a tool does not name its call, so two results cannot be told apart."""

    CAUGHT_BY = "test_a_tools_result_names_its_call"

    def adapt_with_report(self, source: Any, /):
        conversations, report = super().adapt_with_report(source)
        for conversation in conversations:
            for message in conversation["messages"]:
                message.pop("tool_call_id", None)
        return conversations, report
