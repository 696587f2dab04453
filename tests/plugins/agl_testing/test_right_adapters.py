"""The adapter suite passes right adapters of any form, and says which form a flag needs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from faults.adapters import Answers
from right_adapters import AdaptsOnly, OtherForm
from suite_runs import Subject, run

TRACE = """
    @pytest.fixture
    def make_trace(self):
        from agl_core.adapter import read_reward
        from agl_testing.traces import trace

        def made(turns, *, nested=True):
            return [{change} for span in trace(turns, nested=nested) {which}]

        return made
"""
NO_REWARDS = TRACE.format(change="span", which="if read_reward(span) is None")
VALUE = "agentlightning.reward.0.value"
NO_ZERO = TRACE.format(
    change=f"""
                span.model_copy(update={{"attributes": {{**span.attributes, "{VALUE}": 7.0}}}})
                if read_reward(span) == 0 else span""",
    which="",
)
OTHER_FORM = TRACE.format(
    change="span.model_copy(update={'attributes': {'said': span.span_id}})", which=""
)


TESTS = (
    "test_a_trace_of_calls_gives_a_result",
    "test_a_reward_of_zero_is_a_reward",
    "test_an_odd_trace_is_no_error",
    "test_the_report_is_that_of_the_last_adaptation",
    "test_a_turn_that_does_not_matter_is_counted",
    "test_a_call_that_is_left_out_is_counted",
    "test_a_reward_that_is_not_a_number_is_left_out",
)


def test_right_adapters_pass(tmp_path: Path):
    subjects = [
        Subject("counts_nothing", AdaptsOnly, "AdapterSuite", "adapter"),
        Subject("no_rewards", Answers, "AdapterSuite", "adapter", more=NO_REWARDS),
        Subject("no_reward_of_zero", Answers, "AdapterSuite", "adapter", more=NO_ZERO),
        Subject("other_form", OtherForm, "AdapterSuite", "adapter", more=OTHER_FORM),
    ]
    found = run(tmp_path, subjects, [(one.name, test) for one in subjects for test in TESTS])
    assert len(found) == len(subjects) * len(TESTS)
    assert {outcome for seen in found.values() for outcome, _ in seen} == {"passed"}, found


def test_a_flag_of_another_form_is_refused_in_words(tmp_path: Path):
    flags = ["triplets", "messages"]
    subject = Subject("other", OtherForm, "AdapterSuite", "adapter", flags, more=OTHER_FORM)
    tests = (
        "test_a_call_that_was_seen_twice_counts_once",
        "test_a_reward_at_the_end_of_a_call_is_its_reward",
        "test_every_message_is_kept_in_order",
    )
    for test, seen in run(tmp_path, [subject], [("other", test) for test in tests]).items():
        for outcome, text in seen:
            assert outcome == "failure"
            assert "`make_trace` must return the spans of `agl_testing.traces.trace`" in text, test
