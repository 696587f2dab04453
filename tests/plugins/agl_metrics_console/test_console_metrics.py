"""The backends ``console`` and ``multi``."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import time

import pytest

from agl_core.errors import ConfigError
from agl_core.metrics import Instrument, Metric, Metrics
from agl_core.plugins import build_component
from agl_metrics_console import ConsoleMetrics, MultiMetrics
from agl_testing import MetricsSuite

CALLS = Metric("counter", "test.calls", "Calls.", ("method", "status"))
SECONDS = Metric("histogram", "test.seconds", "Time.", ("method",), "s")
LEVEL = Metric("gauge", "test.level", "Level.")


class TestConsoleMetrics(MetricsSuite):
    @pytest.fixture
    def metrics(self):
        return ConsoleMetrics()


class TestMultiMetrics(MetricsSuite):
    @pytest.fixture
    def metrics(self):
        return MultiMetrics([ConsoleMetrics, "console"])


def lines(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "agl_metrics_console.console"]


def parsed(line: str) -> dict[str, str]:
    return dict(part.split(" ", 1) for part in line.split("; "))


def test_a_line_has_rates_and_percentiles(caplog):
    caplog.set_level(logging.INFO)
    metrics = ConsoleMetrics()
    for number in range(1, 101):
        metrics.record(CALLS, 1, ("get", "OK"))
        metrics.record(SECONDS, number / 100, ("get",))
        metrics.record(LEVEL, number)
    metrics.close()
    (line,) = lines(caplog)
    assert parsed(line) == {
        "test.calls": "100/s",
        "test.level": "100",
        "test.seconds": "100/s p50 0.51s p95 0.96s p99 1s",
    }
    metrics.close()
    assert len(lines(caplog)) == 1


def test_lines_come_at_the_interval(caplog):
    caplog.set_level(logging.INFO)
    metrics = ConsoleMetrics(log_interval_seconds=0.2)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        metrics.record(LEVEL, 1)
        time.sleep(0.01)
    assert 1 <= len(lines(caplog)) <= 2


def test_labels_tell_series_apart_down_to_a_level(caplog):
    caplog.set_level(logging.INFO)
    metrics = ConsoleMetrics(group_level=1)
    for labels in (("get", "OK"), ("get", "ValueError"), ("put", "OK")):
        metrics.record(CALLS, 1, labels)
    metrics.close()
    assert parsed(lines(caplog)[0]) == {"test.calls{get}": "2/s", "test.calls{put}": "1/s"}


def test_what_is_older_than_the_window_does_not_count(caplog):
    caplog.set_level(logging.INFO)
    metrics = ConsoleMetrics(window_seconds=0.1)
    metrics.record(SECONDS, 5, ("get",))
    metrics.record(LEVEL, 3)
    time.sleep(0.15)
    metrics.close()
    assert lines(caplog) == ["test.level 3"]  # a gauge holds until it changes


def test_several_backends_get_every_value(caplog):
    caplog.set_level(logging.INFO)
    metrics = build_component("metrics", {"type": "multi", "metrics": ["console", "console"]})
    metrics.record(LEVEL, 4)
    metrics.close()
    assert lines(caplog) == ["test.level 4"] * 2


def test_a_backend_that_fails_stops_no_other(caplog):
    class Broken(Metrics):
        def instrument(self, metric: Metric) -> Instrument:
            def fail(value: float, labels: tuple[str, ...]) -> None:
                raise OSError("disk full")

            return fail

        def close(self) -> None:
            raise OSError("still full")

    caplog.set_level(logging.INFO)
    metrics = MultiMetrics([Broken(), ConsoleMetrics()])
    metrics.record(LEVEL, 3)
    metrics.record(LEVEL, 4)
    with pytest.raises(OSError, match="still full"):
        metrics.close()
    assert lines(caplog) == ["test.level 4"]
    assert caplog.text.count("Broken failed to record test.level") == 1


def test_several_are_at_least_one():
    with pytest.raises(ConfigError, match=re.escape("MultiMetrics.metrics")):
        MultiMetrics([])


def record_one(metrics: Metrics) -> None:
    metrics.record(LEVEL, 1, ())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_while_a_thread_records_is_not_blocked():
    metrics = ConsoleMetrics()
    metrics.record(LEVEL, 1, ())
    process = multiprocessing.get_context("fork").Process(target=record_one, args=(metrics,))
    with metrics._lock:  # as a thread does that the child lacks
        process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0
