"""The conformance suite for adapters.

::

    class TestMyAdapter(AdapterSuite):
        flags = frozenset({"triplets"})

        @pytest.fixture
        def adapter(self):
            return MyAdapter()
"""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from agl_core.adapter import Adapter, AdapterReport, TraceToTripletBase
from agl_core.types import Span, Triplet
from agl_testing.suite import Suite, requires
from agl_testing.traces import trace

__all__ = ["AdapterSuite"]


class AdapterSuite(Suite):
    """Tests the contract of adapters of traces.

    The author supplies a fixture ``adapter``.
    """

    suite_name = "adapter"
    FLAGS: ClassVar[dict[str, str]] = {
        "triplets": "the adapter makes one triplet per model call, with token ids and rewards",
        "messages": "the adapter makes one conversation per model call",
        "empty": "a trace without spans is an ordinary case and gives an empty result",
    }

    @pytest.fixture
    def adapter(self) -> Adapter[Any, Any]:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `adapter`")

    def test_it_is_an_adapter_and_calling_it_adapts(self, adapter: Adapter[Any, Any]):
        assert isinstance(adapter, Adapter)
        assert adapter(trace(3)) == adapter.adapt(trace(3))

    def test_it_can_be_pickled(self, adapter: Adapter[Any, Any]):
        assert pickle.loads(pickle.dumps(adapter)).adapt(trace(3)) == adapter.adapt(trace(3))

    def test_it_leaves_its_source_alone(self, adapter: Adapter[Any, Any]):
        source = trace(4)
        before = [span.model_dump() for span in source]
        adapter.adapt(source)
        assert [span.model_dump() for span in source] == before

    def test_the_same_trace_gives_the_same_result(self, adapter: Adapter[Any, Any]):
        first = adapter.adapt(trace(5))
        adapter.adapt(trace(2, nested=False))
        assert adapter.adapt(trace(5)) == first

    def test_threads_may_share_it(self, adapter: Adapter[Any, Any]):
        expected = {turns: adapter.adapt(trace(turns)) for turns in range(1, 9)}
        with ThreadPoolExecutor(8) as pool:
            for _ in range(5):
                found = pool.map(lambda turns: (turns, adapter.adapt(trace(turns))), expected)
                assert dict(found) == expected

    def test_it_reports_what_it_left_out(self, adapter: Adapter[Any, Any]):
        spans = trace(3)
        _, report = adapter.adapt_with_report(spans)
        assert isinstance(report, AdapterReport)
        assert all(count > 0 for count in report.left_out.values())

    def test_its_cost_is_linear(self, adapter: Adapter[Any, Any]):
        def seconds(spans: Sequence[Span]) -> float:
            # Processor time, since other programs use this machine too. Without the garbage
            # collector, whose work grows with the size of the process.
            gc.collect()
            gc.disable()
            try:
                start = time.process_time()
                adapter.adapt(spans)
                return time.process_time() - start
            finally:
                gc.enable()

        few, many = trace(500), trace(4000)
        # Alternating, so that a busy moment of the machine slows down both.
        rounds = [(seconds(few), seconds(many)) for _ in range(3)]
        # Eight times the spans: a quadratic adapter takes 64 times as long.
        assert min(m for _, m in rounds) < 24 * min(f for f, _ in rounds) + 0.05

    @requires("empty")
    def test_no_spans_give_no_result(self, adapter: Adapter[Any, Any]):
        assert list(adapter.adapt([])) == []

    @requires("triplets")
    @pytest.mark.parametrize("nested", [True, False])
    def test_each_call_becomes_a_triplet_with_its_tokens_and_reward(
        self, adapter: Adapter[Any, list[Triplet]], nested: bool
    ):
        assert isinstance(adapter, TraceToTripletBase)
        triplets = adapter.adapt(trace(4, nested=nested))
        assert [t.prompt["token_ids"] for t in triplets] == [[i, i + 1, i + 2] for i in range(4)]
        assert [t.response["token_ids"] for t in triplets] == [[100 + i, 101 + i] for i in range(4)]
        assert [t.reward for t in triplets] == [0.0, 1.0, 2.0, 3.0]

    @requires("triplets")
    def test_a_reward_before_any_call_goes_to_none(self, adapter: Adapter[Any, list[Triplet]]):
        agent, call, reward = trace(1)
        early = reward.model_copy(update={"sequence_id": 0, "start_time": 0.01, "end_time": 0.01})
        triplets, report = adapter.adapt_with_report([agent, early, call])
        assert [t.reward for t in triplets] == [None]
        assert report.count("reward") == 1

    @requires("triplets")
    def test_a_call_that_was_seen_twice_counts_once(self, adapter: Adapter[Any, list[Triplet]]):
        spans = trace(2)
        again = spans[1].model_copy(update={"span_id": "0f" * 8, "sequence_id": 99})
        triplets, report = adapter.adapt_with_report([*spans, again])
        assert len(triplets) == 2
        assert report.count("call") == 1

    @requires("messages")
    def test_each_call_becomes_a_conversation(self, adapter: Adapter[Any, Any]):
        conversations = adapter.adapt(trace(2))
        assert [conversation["messages"] for conversation in conversations] == [
            [
                {"role": "user", "content": f"question {turn}"},
                {"role": "assistant", "content": f"answer {turn}"},
            ]
            for turn in range(2)
        ]
