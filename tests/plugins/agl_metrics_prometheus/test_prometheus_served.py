"""Metrics of real servers and processes, over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.plugins.agl_metrics_prometheus.conftest import parse

SECRET = "a secret of more than sixteen characters"
TRAINING = """
import sys
import agl_core as agl

@agl.rollout
def agent(task, prompt_template):
    return float(task)

class Batch(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        from agl_algorithm_kit import run_batch
        resources = self.get_initial_resources()
        await run_batch(self.get_store(), train_dataset, resources=resources, mode="train")
        self.report_step(0, {"reward": 0.25})

if __name__ == "__main__":
    from agl_metrics_prometheus import PrometheusMetrics
    strategy = {"type": "cs", "server_port": 0, "n_runners": 2, "start_method": sys.argv[2]}
    tracker = PrometheusMetrics(folder=sys.argv[1])
    prompt = agl.PromptTemplate(template="{x}", engine="f-string")
    trainer = agl.Trainer(
        algorithm=Batch(),
        strategy=strategy,
        tracker=tracker,
        initial_resources={"prompt": prompt},
    )
    trainer.fit(agent, [0, 1] * 5)
"""


@pytest.fixture
def run() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "agl_cli_kit", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=20)
        finally:
            process.kill()


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"(http://\S+)", line)
    assert found, line or process.communicate()
    return found[1]


def ask(url: str, token: str = "", body: object = None) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_store_server_shows_its_metrics(run):
    url = url_of(run("store", "--backend", "memory", "--port", "0", "--tracker", "prometheus"))
    created = ask(f"{url}/v1/agl/queues/rollouts/enqueue", body={"rollouts": [{"input": 1}]})
    assert created[0] == 201
    for path in ("/v1/prometheus", "/v1/prometheus/"):
        found = parse(ask(url + path)[1])
    labels = {"path": "/v1/agl/queues/rollouts/enqueue", "method": "POST", "status": "201"}
    assert found["agl_http_total", frozenset(labels.items())] == 1
    call = {
        "method": "enqueue_many_rollouts",
        "store_pubmeth": "enqueue_many_rollouts",
        "status": "OK",
    }
    assert found["agl_store_total", frozenset(call.items())] == 1
    assert found["agl_store_latency_count", frozenset(call.items())] == 1
    assert ("agl_queue_length", frozenset()) in found


def test_a_scrape_needs_the_servers_token(run):
    options = ("--backend", "memory", "--port", "0", "--tracker", "prometheus")
    url = url_of(run("store", *options, AGL_AUTH_TOKEN=SECRET)) + "/v1/prometheus"
    assert ask(url)[0] == 401
    assert ask(url, SECRET)[0] == 200


def test_without_the_tracker_there_are_no_metrics(run):
    url = url_of(run("store", "--backend", "memory", "--port", "0"))
    assert ask(f"{url}/v1/prometheus")[0] == 404


@pytest.mark.slow
def test_workers_of_a_server_are_merged(run, tmp_path):
    backend = ("--backend", "sqlite", "--path", str(tmp_path / "s.db"))
    process = run("store", *backend, "--port", "0", "--n-workers", "3", "--tracker", "prometheus")
    url = url_of(process)
    for _ in range(60):  # each on a connection of its own, so that all workers get some
        assert ask(f"{url}/v1/agl/statistics")[0] == 200
    labels = {"path": "/v1/agl/statistics", "method": "GET", "status": "200"}
    deadline = time.monotonic() + 10
    count = 0.0
    while count < 60 and time.monotonic() < deadline:  # files are a second old at most
        found = parse(ask(f"{url}/v1/prometheus")[1])
        count = found.get(("agl_http_total", frozenset(labels.items())), 0)
        time.sleep(0.1)
    assert count == 60


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_agl_prometheus_shows_a_training_with_runner_processes(run, tmp_path: Path, method):
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    folder = tmp_path / "shared"
    done = subprocess.run(
        [sys.executable, script, folder, method], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    url = url_of(run("prometheus", "--port", "0", PROMETHEUS_MULTIPROC_DIR=str(folder)))
    found = parse(ask(url)[1])
    ended = frozenset({"status": "succeeded", "mode": "train"}.items())
    assert found["agl_attempts_total", ended] == 10
    assert found["agl_rollouts_total", ended] == 10
    assert (
        found["agl_rewards_sum_total", frozenset({"mode": "train", "sign": "positive"}.items())]
        == 5
    )
    step = frozenset({"algorithm": "Batch", "metric": "reward"}.items())
    assert found["agl_algorithm_value", step] == 0.25
    assert found["agl_runs_total", frozenset({"status": "OK", "mode": "fit"}.items())] == 1
    base = url.removesuffix("/v1/prometheus")
    assert ask(f"{base}/health") == (200, '{"status":"ok"}')
    assert ask(f"{base}/other")[0] == 404


@pytest.mark.parametrize(
    ("arguments", "folder", "message"),
    [
        ([], "", "set PROMETHEUS_MULTIPROC_DIR to a folder"),
        (["--metrics-path", "/"], "x", "--metrics-path: must start with a slash"),
        (["--metrics-path", "metrics"], "x", "--metrics-path: must start with a slash"),
    ],
)
def test_mistakes_are_one_line(run, arguments, folder, message):
    process = run("prometheus", *arguments, PROMETHEUS_MULTIPROC_DIR=folder)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("agl: error: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_the_dashboard_is_printed(run):
    out, _ = run("prometheus", "--dashboard").communicate(timeout=60)
    assert json.loads(out)["title"] == "agl"
