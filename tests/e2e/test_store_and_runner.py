"""`agl store` and `agl runner`, each in a process of its own, and a store server that is killed."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .conftest import until_open

AGENT = """
import agl_core as agl


class Shout(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        agl.emit_message(task.upper())
        return len(task) / 10
"""
TRAIN = """
agent = "shout.py:Shout"
algorithm = "baseline"
"""


def call(port: int, path: str, body: Any) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/agl/{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def enqueue(port: int, task: str) -> str:
    body = {"rollouts": [{"input": task, "mode": "train"}]}
    (rollout,) = call(port, "queues/rollouts/enqueue", body)
    return rollout["rollout_id"]


def until_succeeded(port: int, rollout_id: str, runner: subprocess.Popen[str]) -> None:
    body = {"rollout_ids": [rollout_id], "timeout": 5}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert runner.poll() in (None, 0), runner.communicate()[0]
        for rollout in call(port, "waits/rollouts", body):
            assert rollout["status"] == "succeeded", rollout
            return
    raise TimeoutError(f"{rollout_id} did not finish")


def test_a_runner_outlives_a_store_server_that_is_killed(
    start: Callable[..., subprocess.Popen[str]],
    finish: Callable[..., str],
    agl: str,
    tmp_path: Path,
    port: int,
):
    (tmp_path / "shout.py").write_text(AGENT)
    (tmp_path / "train.toml").write_text(TRAIN)
    serve = (agl, "store", "--backend", "sqlite", "--path", "runs.db", "--port", str(port))
    server = start(*serve)
    until_open(port, server)
    runner = start(
        *(agl, "runner", "train.toml", "--server", f"http://127.0.0.1:{port}"),
        *("-n", "1", "--max-rollouts", "2"),
    )

    prompt = {"resource_type": "prompt_template", "template": "", "engine": "f-string"}
    call(port, "resources", {"prompt": prompt})
    first = enqueue(port, "before")
    until_succeeded(port, first, runner)
    server.kill()
    server.communicate()
    server = start(*serve)
    until_open(port, server)
    second = enqueue(port, "after")
    until_succeeded(port, second, runner)

    output, _ = runner.communicate(timeout=60)
    assert runner.returncode == 0, output
    server.terminate()
    output, _ = server.communicate(timeout=30)
    finish(agl, "store", "export", "runs.jsonl", "--backend", "sqlite", "--path", "runs.db")
    exported = (tmp_path / "runs.jsonl").read_text()
    assert "BEFORE" in exported
    assert "AFTER" in exported
    assert exported.count('"status":"succeeded"') >= 2
