"""Store, algorithm, proxy and runners on machines whose clocks differ by hours."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agl_adapters import TracerTraceToTriplet
from agl_core.types import Attempt, Rollout, Span, Worker
from agl_store_sqlite import SqliteLightningStore

from .conftest import until_open

HOUR = 3600.0
STORE = 1 * HOUR
"""Seconds by which the store server's clock is ahead of this machine's."""
ALGORITHM = 1.5 * HOUR  # and the proxy's, which runs in its process
RUNNERS = {"ahead": 3 * HOUR, "behind": -1 * HOUR}
SLACK = 0.25 * HOUR  # far more than the test takes, far less than clocks differ
UNRESPONSIVE, TIMEOUT = 6, 12

AGENT = f"""
import os
import signal
import time

import openai

import agl_core as agl
from agl_algorithm_kit import run_batch


class Agent(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        kind = task["kind"] if rollout.attempt.sequence_id == 1 else "call"
        agl.emit_message(kind)
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "silent":
            time.sleep(600)
        for _ in range({{"long": {3 * UNRESPONSIVE // 2}, "endless": 600}}.get(kind, 0)):
            time.sleep(0.5)
            agl.emit_message("still here")
        llm = resources["llm"]
        endpoint = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        messages = [{{"role": "system", "content": "carefully"}}]
        messages.append({{"role": "user", "content": "1+2"}})
        with openai.OpenAI(base_url=endpoint, api_key=os.environ["AGL_AUTH_TOKEN"]) as client:
            reply = client.chat.completions.create(model=llm.model, messages=messages)
        return float(reply.choices[0].message.content)


@agl.algo
async def learn(store, train_dataset, llm_proxy, run) -> None:
    config = agl.RolloutConfig(
        unresponsive_seconds={UNRESPONSIVE},
        timeout_seconds={TIMEOUT},
        max_attempts=2,
        retry_condition=["unresponsive", "timeout", "failed"],
    )
    resources = {{"llm": llm_proxy.as_resource()}}
    await run_batch(
        store, train_dataset, resources=resources, config=config, run=run, name="tasks"
    )
"""
KINDS = ("call", "long", "long", "silent", "endless", "killed")
ENDED_AFTER = {"silent": UNRESPONSIVE, "endless": TIMEOUT, "killed": 0}
"""Seconds after which the first attempt of a task is ended; the others succeed."""
TRAIN = """
agent = "agent.py:Agent"
train_dataset = TASKS
store = { type = "http", server_address = "URL" }
strategy = { type = "cs" }

[algorithm]
type = "agent:learn"

[runner]
heartbeat_interval = 1

[proxy]
type = "direct"

[[proxy.model_list]]
model_name = "tiny"
litellm_params = { model = "openai/tiny", api_base = "MODEL" }
"""


@dataclass
class Recorded:
    rollout: Rollout
    attempts: list[Attempt]
    spans: list[Span]
    """Those of the last attempt."""


async def read(path: Path) -> tuple[list[Recorded], list[Worker]]:
    store = SqliteLightningStore(path)
    try:
        found = [
            Recorded(
                rollout,
                list(await store.query_attempts(rollout.rollout_id)),
                list(await store.query_spans(rollout.rollout_id, "latest")),
            )
            for rollout in await store.query_rollouts(sort_by="start_time")
        ]
        return found, list(await store.query_workers())
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_clocks_that_differ_by_hours(
    start: Callable[..., subprocess.Popen[str]],
    finish: Callable[..., str],
    agl: str,
    tmp_path: Path,
    model: Any,
    port: int,
) -> None:
    secret = secrets.token_urlsafe(32)
    url = f"http://127.0.0.1:{port}"
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "train.toml").write_text(
        TRAIN.replace("URL", url)
        .replace("MODEL", model.base_url)
        .replace("TASKS", json.dumps([{"kind": kind} for kind in KINDS]).replace(":", " ="))
    )

    def ahead(seconds: float, token: str = secret) -> tuple[str, ...]:
        """Return how to run ``agl`` with a clock that is so far ahead of this machine's."""
        moved = (f"TEST_CLOCK_AHEAD={seconds}", f"PYTHONPATH={Path(__file__).parent / 'clock'}")
        return ("env", *moved, f"AGL_AUTH_TOKEN={token}", agl)

    def token_of(scope: str, seconds: float) -> str:
        return finish(*ahead(seconds), "store", "token", "--scope", scope, "--hours", "0.5").strip()

    serve = ("store", "--backend", "sqlite", "--path", "runs.db", "--port", str(port))
    server = start(*ahead(STORE), *serve, "--set", "scan_debounce_seconds=0.5")
    until_open(port, server)
    runner_token = token_of("runner", STORE)
    join = ("runner", "train.toml", "--server", url, "-n", "2")
    runners = [start(*ahead(clock, runner_token), *join) for clock in RUNNERS.values()]
    report = finish(*ahead(ALGORITHM), "algorithm", "train.toml", "--run", "skew", "--json")
    for runner in runners:
        runner.terminate()
        output, _ = runner.communicate(timeout=60)
        assert "left open" not in output, output
    assert json.loads(report.splitlines()[-1])["metrics"]["succeeded"] == len(KINDS), report
    assert status_of(url, runner_token) == 200
    assert status_of(url, token_of("runner", STORE - HOUR)) == 401  # it holds half an hour
    assert status_of(url, token_of("runner", STORE + 24 * HOUR)) == 200
    shown = finish(*ahead(0, secret), "attempts", "--url", url)
    server.terminate()
    server.communicate(timeout=30)

    recorded, workers = asyncio.run(read(tmp_path / "runs.db"))
    assert [each.rollout.input["kind"] for each in recorded] == list(KINDS)
    for each in recorded:
        check_attempts(each)
        check_spans(each.spans)
    for each in recorded[:2]:
        trace = finish(*ahead(0), "trace", each.rollout.rollout_id, "--path", "runs.db", "--json")
        check_trace(json.loads(trace), each.attempts[-1])
    assert len(workers) == 4
    for worker in workers:
        assert is_near(worker.last_heartbeat_time)
        assert is_near(worker.last_dequeue_time)
    assert "s ago" in shown
    assert "h ago" not in shown


def status_of(url: str, token: str) -> int:
    """Return the status of the reply to a request that every runner may make."""
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/agl/workers/Worker-0", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def is_near(moment: float | None) -> bool:
    """Tell whether a time is now by the store's clock, and of no other clock of the test."""
    return moment is not None and abs(moment - time.time() - STORE) < SLACK


def check_attempts(each: Recorded) -> None:
    """Only those attempts were ended that had to be, and their times are the store's."""
    kind = each.rollout.input["kind"]
    *ended, last = each.attempts
    assert last.status == "succeeded"
    assert len(ended) == (kind in ENDED_AFTER), each.attempts
    for attempt in ended:
        assert attempt.status != "succeeded"
        assert last.start_time - attempt.start_time >= ENDED_AFTER[kind]
    if kind == "killed":
        assert ended[0].metadata == {"error": "its runner died"}
    for attempt in each.attempts:
        assert is_near(attempt.start_time)
        # The span of a killed one may be lost.
        assert is_near(attempt.last_heartbeat_time or attempt.start_time)
        assert is_near(attempt.end_time)
        assert attempt.end_time is not None
        assert attempt.end_time >= attempt.start_time


def check_spans(spans: list[Span]) -> None:
    """They are in the order in which they were written, and the reward finds its call."""
    numbers = [span.sequence_id for span in spans]
    assert numbers == sorted(set(numbers))
    names = [span.name for span in spans]
    assert names[0] == "agentlightning.message"
    assert names[-1] == "agentlightning.annotation"  # the reward
    assert {"openai.chat.completion", "agl.proxy.openai.chat.completion"} <= set(names)
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.end_time >= span.start_time
    (triplet,) = TracerTraceToTriplet().adapt(spans)
    assert triplet.reward == 3


def check_trace(trace: dict[str, Any], attempt: Attempt) -> None:
    """The figures of ``agl trace`` fit into the attempt."""
    assert attempt.end_time is not None
    longest = attempt.end_time - attempt.start_time
    assert 0 <= trace["summary"]["seconds"] <= longest
    assert trace["summary"]["reward"] == 3
    for row in trace["spans"]:
        assert 0 <= row["start"] <= longest
        assert 0 <= row["seconds"] <= longest
