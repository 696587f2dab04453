"""Prometheus itself, with the configuration of docs/metrics.md, reads a real store server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.agl_metrics_prometheus.test_prometheus_served import SECRET, ask, run, url_of

__all__ = ["run"]

ROOT = Path(__file__).parents[3]
PATH = os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / ".envs/prometheus/usr/bin")])

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus", path=PATH) is None,
        reason="Prometheus is not installed; `python3 dev.py ci` gets it from Debian's archive",
    ),
]


def configuration(target: str) -> str:
    page = (ROOT / "docs/metrics.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    return block.replace("127.0.0.1:4747", target).replace("interval: 10s", "interval: 200ms")


@pytest.fixture
def prometheus(tmp_path: Path, run: Any, unused_tcp_port: int) -> Iterator[tuple[str, str]]:
    """Return the URLs of a store server and of a Prometheus that scrapes it."""
    options = ("--backend", "memory", "--port", "0", "--tracker", "prometheus")
    store = url_of(run("store", *options, AGL_AUTH_TOKEN=SECRET))
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "prometheus.yml").write_text(configuration(store.removeprefix("http://")))
    program = shutil.which("prometheus", path=PATH)
    assert program
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                f"--web.listen-address=127.0.0.1:{unused_tcp_port}",
            ],
            cwd=tmp_path,
            stderr=log,
        )
    try:
        yield store, f"http://127.0.0.1:{unused_tcp_port}"
    finally:
        process.terminate()
        process.wait(20)


def query(url: str, expression: str) -> list[Any]:
    """Return the series of an instant query, once there are some."""
    deadline = time.monotonic() + 30
    found: list[Any] = []
    while not found and time.monotonic() < deadline:
        with suppress(urllib.error.URLError):  # not started yet
            parameter = urllib.parse.urlencode({"query": expression})
            with urllib.request.urlopen(f"{url}/api/v1/query?{parameter}") as answer:
                found = json.load(answer)["data"]["result"]
        time.sleep(0.1)
    return found


def test_prometheus_scrapes_a_store_server(prometheus):
    store, url = prometheus
    body = {"rollouts": [{"input": 1}]}
    assert ask(f"{store}/v1/agl/queues/rollouts/enqueue", SECRET, body)[0] == 201
    path = "/v1/agl/queues/rollouts/enqueue"
    (series,) = query(url, f'agl_http_total{{path="{path}"}}')
    assert series["metric"]["method"] == "POST"
    assert series["value"][1] == "1"
    (percentile,) = query(
        url, f'histogram_quantile(0.5, agl_http_latency_bucket{{path="{path}"}}) > 0'
    )
    assert 0 < float(percentile["value"][1]) < 300
    (up,) = query(url, "up")
    assert (up["metric"]["job"], up["value"][1]) == ("agl", "1")


def test_every_query_of_the_dashboard_is_understood(prometheus):
    _, url = prometheus
    assert query(url, "up")
    text = ROOT / "plugins/agl_metrics_prometheus/src/agl_metrics_prometheus/grafana/agl.json"
    panels = json.loads(text.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    assert asked
    for expression in asked:
        plain = expression.replace("$__rate_interval", "1m")
        parameter = urllib.parse.urlencode({"query": plain})
        with urllib.request.urlopen(f"{url}/api/v1/query?{parameter}") as answer:
            assert json.load(answer)["status"] == "success", expression


def test_promtool_finds_nothing_wrong_with_the_page(run):
    promtool = shutil.which("promtool", path=PATH)
    if promtool is None:
        pytest.skip("there is no promtool beside Prometheus")
    url = url_of(run("store", "--backend", "memory", "--port", "0", "--tracker", "prometheus"))
    ask(f"{url}/v1/agl/statistics")
    page = ask(f"{url}/v1/prometheus")[1]
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60
    )
    assert "agl_http_latency" in page
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
