"""The backend ``prometheus``: sums, processes, and the page."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import threading
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_core.metrics import Metric, Recorder, _store as store_metrics, record, recording
from agl_metrics_prometheus import PrometheusMetrics
from agl_metrics_prometheus.exposition import FolderCollector
from agl_metrics_prometheus.page import metrics_page
from agl_metrics_prometheus.totals import Series, all_totals, read_folder
from agl_store_http import StoreApp, StoreAppOptions
from agl_store_memory import InMemoryLightningStore
from agl_testing import MetricsSuite
from tests.plugins.agl_metrics_prometheus.conftest import fetch, parse

CALLS = Metric("counter", "test.calls", "Calls.", ("who",))
LEVEL = Metric("gauge", "test.level", "Level.")
SECONDS = Metric("histogram", "test.seconds", "Time.", (), "s")


@pytest.fixture
def metrics(tmp_path: Path) -> PrometheusMetrics:
    return PrometheusMetrics(folder=tmp_path / "shared")


class TestPrometheusMetrics(MetricsSuite):
    flags = frozenset({"readable", "buckets"})

    @pytest.fixture
    def metrics(self, tmp_path):
        return PrometheusMetrics(folder=tmp_path)

    @pytest.fixture
    def read(self):
        def read(metrics: PrometheusMetrics) -> dict[tuple[str, tuple[str, ...]], Any]:
            metrics.close()
            found = {}
            for series in read_folder(metrics.folder):
                for labels, cell in series.cells.items():
                    value: Any = cell[0]
                    if series.metric.kind == "histogram":
                        counts = cell[1:]
                        pairs = enumerate(series.metric.buckets, start=1)
                        value = (
                            sum(counts),
                            value,
                            {bound: sum(counts[:place]) for place, bound in pairs},
                        )
                    found[series.metric.name, labels] = value
            return found

        return read


async def test_the_page_is_read_by_the_client_librarys_parser(metrics):
    for who in ("a", 'odd "name"\n\\', "é\ud800"):
        metrics.record(CALLS, 2, (who,))
    metrics.record(LEVEL, -1.5)
    for value in (0.05, 0.5, 1e6):
        metrics.record(SECONDS, value)
    status, kind, text = await fetch(metrics_page(InMemoryLightningStore()))
    assert status == 200
    assert kind.startswith("text/plain; version=")
    found = parse(text)
    assert found["test_calls_total", frozenset({("who", "a")})] == 2
    assert found["test_calls_total", frozenset({("who", 'odd "name"\n\\')})] == 2
    assert found["test_calls_total", frozenset({("who", "é?")})] == 2
    assert found["test_level", frozenset()] == -1.5
    assert found["test_seconds_count", frozenset()] == 3
    assert found["test_seconds_sum", frozenset()] == 1000000.55
    assert found["test_seconds_bucket", frozenset({("le", "0.05")})] == 1
    assert found["test_seconds_bucket", frozenset({("le", "300.0")})] == 2
    assert found["test_seconds_bucket", frozenset({("le", "+Inf")})] == 3
    assert any(name == "python_info" for name, _ in found)  # what the program has besides


async def test_the_page_speaks_open_metrics_when_asked(metrics):
    metrics.record(CALLS, 1, ("a",))
    page = metrics_page(InMemoryLightningStore())
    _, kind, text = await fetch(page, accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert (await fetch(page, "HEAD"))[::2] == (200, "")
    assert (await fetch(page, "POST"))[0] == 405


async def test_without_the_tracker_the_page_says_how_to_start_it():
    assert not all_totals()
    status, _, text = await fetch(metrics_page(InMemoryLightningStore()))
    assert status == 404
    assert "agl store --tracker prometheus" in text


def work(metrics: PrometheusMetrics, number: int) -> None:
    with recording(metrics):
        for _ in range(number):
            record(CALLS, 1, "child")
            record(SECONDS, 0.5)
        record(LEVEL, number)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_processes_are_merged_and_ended_ones_still_count(metrics, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"the system has no {method}")
    metrics.record(CALLS, 5, ("child",))
    metrics.record(LEVEL, 99)
    for number in (2, 3):
        child = multiprocessing.get_context(method).Process(target=work, args=(metrics, number))
        child.start()
        child.join(60)
        assert child.exitcode == 0
    found = parse((await fetch(metrics_page(InMemoryLightningStore())))[2])
    assert found["test_calls_total", frozenset({("who", "child")})] == 10
    assert found["test_seconds_count", frozenset()] == 5
    assert found["test_level", frozenset()] == 3  # the latest


@given(st.lists(st.floats(0, 400) | st.sampled_from(SECONDS.buckets), min_size=1))
def test_each_value_counts_in_the_first_bucket_that_it_fits_in(values):
    series = Series(SECONDS)
    series.add((), values)
    total, *counts = series.cells[()]
    bounds = [-1.0, *SECONDS.buckets, float("inf")]
    assert counts == [
        sum(low < value <= high for value in values) for low, high in pairwise(bounds)
    ]
    assert total == pytest.approx(sum(values))


def test_values_reach_the_folder_by_themselves(metrics):
    before = set(threading.enumerate())  # the timer of an earlier test may still run
    metrics.record(CALLS, 1, ("a",))
    (writer,) = [t for t in set(threading.enumerate()) - before if t.name == "agl-prometheus"]
    writer.join(5)
    (series,) = read_folder(metrics.folder)
    assert series.cells == {("a",): [1]}
    metrics.record(CALLS, 1, ("a",))
    metrics.close()
    (series,) = read_folder(metrics.folder)
    assert series.cells == {("a",): [2]}
    assert len(list(metrics.folder.iterdir())) == 1


def test_values_of_recorders_reach_the_folder_until_the_end(metrics, monkeypatch):
    monkeypatch.setattr("agl_metrics_prometheus.totals._WRITE_SECONDS", 0.01)
    before = set(threading.enumerate())

    def writers() -> list[threading.Thread]:
        # Python also lists a thread that is about to start, which nobody can wait for.
        new = [thread for thread in threading.enumerate() if thread not in before]
        return [t for t in new if t.name == "agl-prometheus" and t.is_alive()]

    def written() -> list[float]:
        return [cell[0] for series in read_folder(metrics.folder) for cell in series.cells.values()]

    def note(recorder: Recorder) -> None:
        assert recorder.record is not None
        recorder.record(1)

    recorder = Recorder(CALLS, "a")
    with recording(metrics):
        for total in (1, 2):
            note(recorder)
            while written() != [total]:
                for writer in writers():
                    writer.join(5)
        note(recorder)
    assert written() == [3]
    for writer in writers():
        writer.join(5)
    assert not writers()


async def test_every_request_of_several_loops_is_counted_while_the_sums_are_read(metrics):
    requests, loops = 1500, 3
    known = {"method": "GET", "path": "/v1/agl/rollouts/ro-none"}
    refused = {"method": "POST", "path": "/v1/agl/queues/rollouts/enqueue"}

    async def ask() -> None:
        app = StoreApp(InMemoryLightningStore(), StoreAppOptions(tracker=(metrics,)))
        for _ in range(requests):
            await answer(app, known)
        for _ in range(requests // 10):
            await answer(app, refused)

    async def answer(app: StoreApp, request: dict[str, str]) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{", "more_body": False}

        async def send(message: Any) -> None:
            pass

        raw_path, headers = request["path"].encode(), [(b"host", b"localhost")]
        more = {"type": "http", "raw_path": raw_path, "query_string": b"", "headers": headers}
        await app({**request, **more}, receive, send)

    page = metrics_page(InMemoryLightningStore())
    with recording(metrics):
        threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(loops)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            await fetch(page)
            metrics.close()
        for thread in threads:
            thread.join()
        found = parse((await fetch(page))[2])

    def all_of(**labels: str) -> frozenset[tuple[str, str]]:
        return frozenset(labels.items())

    gets = all_of(method="GET", path="/v1/agl/rollouts/{rollout_id}", status="200")
    posts = all_of(method="POST", path=refused["path"], status="422")
    calls = all_of(method="get_rollout_by_id", store_pubmeth="get_rollout_by_id", status="OK")
    assert found["agl_http_total", gets] == loops * requests
    assert found["agl_http_latency_count", gets] == loops * requests
    assert found["agl_http_latency_bucket", gets | {("le", "+Inf")}] == loops * requests
    assert found["agl_http_total", posts] == loops * (requests // 10)
    assert found["agl_store_total", calls] == loops * requests


async def test_a_damaged_file_is_left_out(metrics, caplog):
    metrics.record(CALLS, 1, ("a",))
    metrics.folder.mkdir()
    (metrics.folder / "1-x.agl.json").write_text('[{"metric": [')
    (metrics.folder / "2-x.agl.json").write_text("[5]")
    found = parse((await fetch(metrics_page(InMemoryLightningStore())))[2])
    assert found["test_calls_total", frozenset({("who", "a")})] == 1
    assert "1-x.agl.json is left out" in caplog.text
    assert "2-x.agl.json is left out" in caplog.text


async def test_a_page_makes_the_folder_of_the_environment(metrics, monkeypatch, tmp_path: Path):
    folder = tmp_path / "not/yet"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    page = metrics_page(InMemoryLightningStore())
    assert folder.is_dir()
    assert (await fetch(page))[0] == 200


async def test_a_page_goes_without_a_folder_of_the_environment(
    metrics, monkeypatch, tmp_path: Path, caplog
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "file"))
    page = metrics_page(InMemoryLightningStore())
    assert "PROMETHEUS_MULTIPROC_DIR is not a folder" in caplog.text
    metrics.record(LEVEL, 1)
    assert parse((await fetch(page))[2])["test_level", frozenset()] == 1


async def test_the_queue_and_workers_of_an_ended_process_are_left_out(metrics):
    with recording(metrics):
        record(store_metrics.QUEUE, 3)
        record(store_metrics.WORKERS, 8, "busy")
        record(LEVEL, 1)
    (file,) = metrics.folder.glob("*.agl.json")
    rows = json.loads(file.read_text())
    for row in rows:
        for _, cell in row["cells"]:
            cell[1] -= 3600
    file.with_name("ended.agl.json").write_text(json.dumps(rows))

    def shown() -> dict[str, float]:
        families = FolderCollector(metrics.folder).collect()
        return {sample.name: sample.value for family in families for sample in family.samples}

    assert shown() == {"agl_queue_length": 3, "agl_workers": 8, "test_level": 1}
    file.unlink()
    assert shown() == {"test_level": 1}


def test_two_names_that_prometheus_cannot_tell_apart_are_refused(metrics):
    metrics.record(Metric("counter", "test.a_b", "One."), 1)
    with pytest.raises(ValueError, match="one name in Prometheus"):
        metrics.record(Metric("counter", "test.a.b", "Two."), 1)


def test_the_folder_of_the_environment_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "given"))
    assert PrometheusMetrics().folder == tmp_path / "given"


def test_a_folder_that_cannot_be_written_is_logged_and_the_process_has_its_sums(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    metrics = PrometheusMetrics(folder=blocked)
    metrics.record(CALLS, 1, ("a",))
    metrics.close()
    assert "metrics of this process are not shared" in caplog.text
    assert all_totals()


def test_the_dashboard_asks_for_metrics_that_exist():
    text = files("agl_metrics_prometheus").joinpath("grafana/agl.json").read_text("utf-8")
    dashboard = json.loads(text)
    page = Path(__file__).parents[3].joinpath("docs/metrics.md")
    documented = set(re.findall(r"`(agl\.[a-z_.]+)`", page.read_text()))
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            asked |= set(re.findall(r"agl_[a-z_]+", target["expr"]))
    assert asked
    for name in asked:
        bare = re.sub(r"_(bucket|sum|count)$", "", name)
        spellings = {each.replace(".", "_") for each in documented}
        assert bare in spellings or bare.removesuffix("_total") in spellings or name in spellings
