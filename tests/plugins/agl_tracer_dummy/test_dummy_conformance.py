"""The dummy tracer under the conformance suite: its spans stay in memory."""

from typing import ClassVar

import pytest

from agl_store_memory import InMemoryLightningStore
from agl_testing import TracerSuite
from agl_tracer_dummy import DummyTracer

SENDS_NOTHING = "the dummy tracer sends nothing to a store, which is what it is for"
LOOK_INTO_THE_STORE = [
    "test_spans_are_in_the_store_when_the_context_has_closed",
    "test_sequence_ids_follow_the_order_of_what_happened",
    "test_an_operation_is_the_parent_of_what_happens_in_it",
    "test_an_operation_records_the_error_that_leaves_it",
    "test_a_created_span_returns_what_it_recorded",
    "test_one_id_without_the_other_is_refused",
    "test_an_error_of_the_agent_passes_through_and_its_spans_are_kept",
    "test_work_after_the_context_is_not_recorded",
    "test_closing_the_context_reports_a_store_that_is_down",
    "test_it_can_be_used_again_after_teardown",
    "test_a_nested_context_keeps_its_own",
    "test_tasks_do_not_mix",
    "test_threads_do_not_mix",
    "test_a_cancelled_agent_keeps_its_spans",
    "test_a_refused_span_is_reported",
    "test_a_number_that_is_drawn_later_is_higher",
    "test_a_span_outside_of_all_contexts_is_not_recorded",
    "test_a_status_is_kept",
    "test_a_task_that_outlives_its_context_records_nothing",
    "test_a_store_that_fails_once_gets_the_spans_later",
    "test_a_store_that_never_answers_is_reported_in_time",
    "test_an_exception_becomes_an_event_and_propagates",
    "test_an_operation_that_ended_has_no_more_children",
    "test_another_task_reads_the_last_trace",
    "test_attributes_keep_their_types",
    "test_attributes_of_the_caller_are_left_alone",
    "test_flushed_spans_are_in_the_store",
    "test_hundreds_of_spans_arrive_whole_and_in_order",
    "test_ids_need_a_store",
    "test_one_worker_may_leave_before_another",
    "test_provisional_numbers_follow_the_order",
    "test_spans_arrive_while_the_agent_works",
    "test_spans_of_gathered_tasks_belong_to_the_trace",
    "test_spans_of_to_thread_belong_to_the_trace",
    "test_the_spans_of_an_attempt_have_one_trace_id",
    "test_times_are_those_of_the_caller",
    "test_what_ends_after_the_context_is_not_recorded",
    "test_without_times_the_clock_counts",
    "test_a_large_text_arrives_whole",
    "test_many_attributes_and_a_long_name_arrive_whole",
    "test_a_reward_of_zero_arrives",
    "test_thousands_of_spans_arrive",
    "test_what_ends_an_agent_passes_through",
    "test_what_ends_an_operation_passes_through",
]
HAS_NO_WORKERS = "the dummy tracer has nothing to initialise"


class TestDummyTracer(TracerSuite):
    flags = frozenset({"concurrent", "nested"})
    arrival_seconds: ClassVar[float] = 0.1  # nothing arrives, however long a test waits
    expected_failures: ClassVar[dict[str, str]] = {
        **dict.fromkeys(LOOK_INTO_THE_STORE, SENDS_NOTHING),
        "test_a_context_needs_an_initialised_tracer": HAS_NO_WORKERS,
    }

    @pytest.fixture
    def tracer(self):
        return DummyTracer()

    @pytest.fixture
    def tracer_store(self):
        # The kinds of stores make no difference here.
        return InMemoryLightningStore()
