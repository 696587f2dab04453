"""The conformance suite for metrics backends.

::

    class TestMyMetrics(MetricsSuite):
        @pytest.fixture
        def metrics(self):
            return MyMetrics(...)

        @pytest.fixture
        def read(self):
            return lambda metrics: {...}
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias

import pytest

from agl_core.metrics import Metric, Metrics
from agl_testing.suite import Suite, requires

__all__ = ["MetricsSuite", "Read"]

Read: TypeAlias = Callable[[Any], dict[tuple[str, tuple[str, ...]], Any]]
"""Returns what a backend holds, by name and label values: the sum of a counter, the value of a
gauge, and ``(count, sum)`` of a histogram."""

CALLS = Metric("counter", "suite.calls", "Calls.", ("method", "status"))
LEVEL = Metric("gauge", "suite.level", "Level.", ("place",))
SECONDS = Metric("histogram", "suite.seconds", "Time.", ("method",), "s")
PLAIN = Metric("counter", "suite.plain", "A counter without labels.")

FORK_SECONDS = 30.0
"""Longest wait for a forked child, which records one value and reads what its backend holds."""


class MetricsSuite(Suite):
    """Tests the contract of metrics backends.

    The author supplies a fixture ``metrics``, an empty backend. With the flag ``readable``, also
    ``read``: a function that returns what a backend holds (:data:`Read`), after ``close`` for
    backends that send.
    """

    suite_name = "metrics"
    FLAGS: ClassVar[dict[str, str]] = {
        "readable": "what the backend holds can be read; the fixture `read` does it",
        "buckets": "`read` returns `(count, sum, {bound: count up to it})` for histograms",
    }

    @pytest.fixture
    def metrics(self) -> Metrics:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `metrics`")

    @pytest.fixture
    def read(self) -> Read:
        raise NotImplementedError(
            f"{type(self).__name__} claims `readable` and must supply a fixture `read`"
        )

    def test_every_kind_of_metric_is_taken(self, metrics: Metrics):
        for metric, labels in ((CALLS, ("a", "OK")), (LEVEL, ("x",)), (SECONDS, ("a",))):
            metrics.record(metric, 0, labels)
            metrics.record(metric, 1.5, labels)
        metrics.record(PLAIN, 1)
        metrics.close()

    def test_a_wrong_number_of_labels_is_refused(self, metrics: Metrics):
        for labels in ((), ("a",), ("a", "OK", "more")):
            with pytest.raises(ValueError, match="labels"):
                metrics.record(CALLS, 1, labels)

    def test_a_counter_does_not_shrink(self, metrics: Metrics):
        with pytest.raises(ValueError, match="counter"):
            metrics.record(CALLS, -1, ("a", "OK"))

    def test_two_metrics_of_one_name_are_refused(self, metrics: Metrics):
        metrics.record(PLAIN, 1)
        metrics.record(Metric("counter", "suite.plain", "A counter without labels."), 1)
        with pytest.raises(ValueError, match=r"suite\.plain"):
            metrics.record(Metric("gauge", "suite.plain", "Another."), 1)

    def test_odd_label_values_are_taken(self, metrics: Metrics):
        for value in ("", 'a "quote"', "line\nbreak", "\\", "é\u202e\U0001f600", "x" * 5000):
            metrics.record(LEVEL, 1, (value,))
        metrics.close()

    def test_a_second_close_does_nothing(self, metrics: Metrics):
        metrics.record(PLAIN, 1)
        metrics.close()
        metrics.close()

    def test_a_copy_from_a_pickle_records(self, metrics: Metrics):
        metrics.record(PLAIN, 1)
        problem = ""
        try:
            copy = pickle.loads(pickle.dumps(metrics))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            copy, problem = None, repr(error)
        assert not problem, "it does not pickle"
        assert copy is not None
        assert type(copy) is type(metrics)
        copy.record(PLAIN, 1)
        copy.record(SECONDS, 0.1, ("a",))
        copy.close()

    @requires("readable")
    def test_a_copy_from_a_pickle_counts_its_own(self, metrics: Metrics, read: Read):
        metrics.record(PLAIN, 1)
        copy = pickle.loads(pickle.dumps(metrics))
        copy.record(PLAIN, 2)
        in_copy = read(copy)["suite.plain", ()]
        # A backend that merges processes reads the same sum everywhere.
        assert in_copy in (2, read(metrics)["suite.plain", ()]), (
            "a copy from a pickle has values of the original, which are then counted twice"
        )

    @requires("readable")
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
    def test_a_forked_child_counts_its_own(self, metrics: Metrics, read: Read):
        def record_and_read() -> Any:
            metrics.record(PLAIN, 2)
            return read(metrics).get(("suite.plain", ()))

        metrics.record(PLAIN, 1)
        in_child = forked(record_and_read)
        # None: a backend that sends has sent its values to where only the parent can read them.
        assert in_child in (2, None, read(metrics)["suite.plain", ()]), (
            "a forked child has values of its parent, which are then counted twice: "
            "`after_fork` must forget them and make new locks"
        )

    @requires("readable")
    def test_a_counter_is_the_sum_of_its_increments(self, metrics: Metrics, read: Read):
        metrics.record(CALLS, 1, ("a", "OK"))
        metrics.record(CALLS, 2.5, ("a", "OK"))
        metrics.record(CALLS, 1, ("a", "ValueError"))
        metrics.record(PLAIN, 7)
        found = read(metrics)
        assert found["suite.calls", ("a", "OK")] == 3.5
        assert found["suite.calls", ("a", "ValueError")] == 1
        assert found["suite.plain", ()] == 7

    @requires("readable")
    def test_values_of_a_bound_function_count_like_others(self, metrics: Metrics, read: Read):
        for metric, labels in ((CALLS, ("a", "OK")), (SECONDS, ("a",))):
            quick = metrics.bound(metric, labels)
            metrics.record(metric, 1, labels)
            for value in (2, 4):
                quick(value) if quick else metrics.record(metric, value, labels)
        found = read(metrics)
        assert found["suite.calls", ("a", "OK")] == 7
        assert found["suite.seconds", ("a",)][:2] == (3, 7)

    @requires("readable")
    def test_a_gauge_is_its_last_value(self, metrics: Metrics, read: Read):
        for value in (5, -2.5, 3):
            metrics.record(LEVEL, value, ("x",))
        metrics.record(LEVEL, 8, ("y",))
        found = read(metrics)
        assert found["suite.level", ("x",)] == 3
        assert found["suite.level", ("y",)] == 8

    @requires("readable")
    def test_a_gauge_may_return_to_zero(self, metrics: Metrics, read: Read):
        for value in (3, 0):
            metrics.record(LEVEL, value, ("x",))
        assert read(metrics)["suite.level", ("x",)] == 0

    @requires("readable")
    def test_thousands_of_label_values_are_kept_apart(self, metrics: Metrics, read: Read):
        # Workers and models have long names that begin alike.
        names = [f"{'worker-of-a-large-cluster-' * 4}{number}" for number in range(1500)]
        for number, name in enumerate(names):
            metrics.record(CALLS, number + 1, (name, "OK"))
        found = read(metrics)
        assert [found.get(("suite.calls", (name, "OK"))) for name in names] == [*range(1, 1501)]

    @requires("readable")
    def test_a_histogram_has_count_and_sum(self, metrics: Metrics, read: Read):
        for value in (0.25, 0.5, 1000):
            metrics.record(SECONDS, value, ("a",))
        assert tuple(read(metrics)["suite.seconds", ("a",)][:2]) == (3, 1000.75)

    @requires("readable", "buckets")
    def test_a_value_is_in_the_buckets_whose_bound_it_does_not_exceed(
        self, metrics: Metrics, read: Read
    ):
        for value in (0.05, 0.1, 0.100001, 1e9):
            metrics.record(SECONDS, value, ("a",))
        buckets = read(metrics)["suite.seconds", ("a",)][2]
        assert (buckets[0.03], buckets[0.05], buckets[0.1], buckets[0.2]) == (0, 1, 2, 3)
        assert buckets[300.0] == 3

    @requires("readable")
    def test_threads_lose_nothing(self, metrics: Metrics, read: Read):
        def work(thread: int) -> None:
            for number in range(500):
                metrics.record(CALLS, 1, (str(number % 3), "OK"))
                metrics.record(SECONDS, 1, ("a",))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        found = read(metrics)
        assert sum(found["suite.calls", (str(place), "OK")] for place in range(3)) == 4000
        assert tuple(found["suite.seconds", ("a",)][:2]) == (4000, 4000)


def forked(work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns in a forked child."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=lambda: there.send(work()))
    with warnings.catch_warnings():
        # Python warns of threads at a fork; what they hold is what a backend must make anew.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    there.close()
    try:
        assert here.poll(FORK_SECONDS), "a forked child hangs when it records its first value"
        return here.recv()
    except EOFError:
        pytest.fail("a forked child ended with the error that it wrote to stderr")
    finally:
        child.kill()
        child.join()
        here.close()
