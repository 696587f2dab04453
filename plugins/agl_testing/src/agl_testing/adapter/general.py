"""Rules of every adapter."""

from __future__ import annotations

import gc
import json
import pickle
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agl_core.adapter import Adapter, AdapterReport
from agl_core.types import Span
from agl_testing.adapter.base import AdapterTests, MakeTrace, counts
from agl_testing.suite import requires

__all__ = ["GeneralTests"]


class GeneralTests(AdapterTests):
    """Adapters are pure functions of a trace, with a report."""

    def test_it_is_an_adapter_and_calling_it_adapts(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        assert isinstance(adapter, Adapter)
        assert adapter(make_trace(3)) == adapter.adapt(make_trace(3))

    def test_it_can_be_pickled(self, adapter: Adapter[Any, Any], make_trace: MakeTrace):
        assert pickle.loads(pickle.dumps(adapter)).adapt(make_trace(3)) == adapter.adapt(
            make_trace(3)
        )

    def test_it_leaves_its_source_alone(self, adapter: Adapter[Any, Any], make_trace: MakeTrace):
        source = make_trace(4)
        before = [span.model_dump() for span in source]
        adapter.adapt(source)
        assert [span.model_dump() for span in source] == before

    def test_the_same_trace_gives_the_same_result(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        first = adapter.adapt(make_trace(5))
        adapter.adapt(make_trace(2, nested=False))
        assert adapter.adapt(make_trace(5)) == first

    def test_threads_may_share_it(self, adapter: Adapter[Any, Any], make_trace: MakeTrace):
        expected = {turns: adapter.adapt(make_trace(turns)) for turns in range(1, 9)}
        with ThreadPoolExecutor(8) as pool:
            for _ in range(5):
                found = pool.map(lambda turns: (turns, adapter.adapt(make_trace(turns))), expected)
                assert dict(found) == expected

    def test_it_reports_what_it_left_out(self, adapter: Adapter[Any, Any], make_trace: MakeTrace):
        spans = make_trace(3)
        _, report = adapter.adapt_with_report(spans)
        assert isinstance(report, AdapterReport)
        assert all(count > 0 for count in report.left_out.values())

    def test_its_cost_is_linear(self, adapter: Adapter[Any, Any], make_trace: MakeTrace):
        def seconds(spans: Sequence[Span]) -> float:
            start = time.process_time()  # not wall time: other programs use this machine too
            adapter.adapt(spans)
            return time.process_time() - start

        few, many = make_trace(500), make_trace(4000)
        gc.disable()  # its work grows with the size of the process
        try:
            # Alternating, so that a busy moment of the machine slows down both.
            rounds = [(seconds(few), seconds(many)) for _ in range(3)]
        finally:
            gc.enable()
        # Eight times the spans: a quadratic adapter takes 64 times as long.
        assert min(m for _, m in rounds) < 24 * min(f for f, _ in rounds) + 0.05

    @requires("empty")
    def test_no_spans_give_no_result(self, adapter: Adapter[Any, Any], make_trace: MakeTrace):
        assert list(adapter.adapt([])) == []

    def test_the_report_is_that_of_the_last_adaptation(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        assert adapter.report == AdapterReport()
        adapter.adapt(make_trace(2))
        adapter.adapt(make_trace(3))
        result, report = adapter.adapt_with_report(make_trace(3))
        assert adapter.report == report
        if counts(adapter):
            assert report.spans == len(make_trace(3)), "the report counts other spans"
            assert sum(report.produced.values()) == len(result), "the report counts other results"

    def test_a_source_that_is_not_a_list_is_read_once(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        assert adapter.adapt(tuple(make_trace(3))) == adapter.adapt(make_trace(3))

    def test_a_report_can_be_written_as_json(
        self, adapter: Adapter[Any, Any], make_trace: MakeTrace
    ):
        spans = make_trace(3)
        _, report = adapter.adapt_with_report([*spans, spans[-1]])
        written = json.loads(json.dumps(report.as_dict()))
        assert written["spans"] == report.spans
        assert written["produced"] == dict(report.produced)
        counts = {
            (item, reason): number
            for item, reasons in written["left_out"].items()
            for reason, number in reasons.items()
        }
        assert counts == dict(report.left_out)
        assert set(written["repaired"]) == {item for item, _ in report.repaired}
