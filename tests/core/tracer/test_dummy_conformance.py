"""The dummy tracer under the conformance suite: its spans stay in memory."""

import pytest

from agl_core.tracer import DummyTracer
from agl_testing import TracerSuite

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
]


class TestDummyTracer(TracerSuite):
    flags = frozenset({"concurrent", "nested"})
    expected_failures = dict.fromkeys(LOOK_INTO_THE_STORE, SENDS_NOTHING)

    @pytest.fixture
    def tracer(self):
        return DummyTracer()
