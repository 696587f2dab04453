"""The backend ``otel``, with a collector that takes OTLP over HTTP."""

from __future__ import annotations

import logging
import multiprocessing
import re
from typing import Any

import pytest

import agl_core as agl
from agl_core.errors import ConfigError
from agl_core.metrics import Metric, record, recording
from agl_metrics_otel import OtelMetrics
from agl_testing import MetricsSuite
from tests.plugins.agl_metrics_otel.conftest import Collector

CALLS = Metric("counter", "test.calls", "Calls.", ("who",))


class TestOtelMetrics(MetricsSuite):
    flags = frozenset({"readable", "buckets"})

    @pytest.fixture
    def metrics(self, collector):
        metrics = OtelMetrics(collector.url, interval=60)
        yield metrics
        metrics.close()

    @pytest.fixture
    def read(self, collector):
        def read(metrics: OtelMetrics):
            metrics.close()
            return collector.values()

        return read


def test_values_are_sent_in_intervals_with_headers_and_resource(collector: Collector):
    metrics = OtelMetrics(
        endpoint=f"{collector.url}/",
        headers={"x-key": "secret"},
        interval=0.05,
        resource={"deployment.environment": "test"},
    )
    metrics.record(CALLS, 1, ("a",))
    with collector.arrived:
        assert collector.arrived.wait_for(lambda: collector.requests, 10)
    path, headers, request = collector.requests[0]
    assert path == "/v1/metrics"
    assert headers["x-key"] == "secret"
    (about,) = collector.resources()
    assert (about["service.name"], about["deployment.environment"]) == ("agl", "test")
    (sent,) = request.resource_metrics[0].scope_metrics[0].metrics
    assert (sent.name, sent.description, sent.sum.is_monotonic) == ("test.calls", "Calls.", True)
    metrics.close()
    assert "secret" not in repr(metrics._config)


def test_a_second_run_sends_again(collector: Collector):
    metrics = OtelMetrics(collector.url)
    for _ in range(2):
        with recording(metrics):
            record(CALLS, 1, "a")
    assert collector.values() == {("test.calls", ("a",)): 2}  # of two service instances


def test_a_lone_surrogate_does_not_stop_the_export(collector: Collector):
    metrics = OtelMetrics(collector.url)
    metrics.record(CALLS, 1, ("\ud800",))
    metrics.close()
    assert collector.values() == {("test.calls", ("?",)): 1}


def work(metrics: OtelMetrics) -> None:
    with recording(metrics):
        record(CALLS, 2, "child")


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_each_process_sends_its_own_values(collector: Collector, method: str):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"the system has no {method}")
    metrics = OtelMetrics(collector.url)
    metrics.record(CALLS, 1, ("parent",))
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=work, args=(metrics,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert collector.values() == {("test.calls", ("child",)): 2}
    metrics.close()
    assert collector.values() == {("test.calls", ("child",)): 2, ("test.calls", ("parent",)): 1}


def test_a_trainer_sends_what_it_measures(collector: Collector):
    @agl.rollout
    def agent(task: float, prompt_template: agl.PromptTemplate) -> float:
        return task

    prompt = agl.PromptTemplate(template="{x}", engine="f-string")
    trainer = agl.Trainer(
        algorithm="baseline",
        strategy="shm",
        tracker={"type": "otel", "endpoint": collector.url},
        initial_resources={"prompt": prompt},
    )
    trainer.fit(agent, [0.25, 0.75])
    values = collector.values()
    assert values["agl.attempts.total", ("succeeded", "train")] == 2
    assert values["agl.attempts.reward", ("train",)][:2] == (2, 1.0)
    assert values["agl.runs.total", ("OK", "fit")] == 1


def test_a_collector_that_is_down_is_logged_and_ends_in_time(caplog):
    metrics = OtelMetrics("http://127.0.0.1:9", timeout=0.3)
    metrics.record(CALLS, 1, ("a",))
    with caplog.at_level(logging.WARNING):
        metrics.close()
    assert re.search("Failed to export|while exporting", caplog.text)


def test_an_endpoint_without_a_scheme_is_refused():
    with pytest.raises(ConfigError, match="endpoint"):
        OtelMetrics("localhost:4318")
