"""Restarts one part of a cluster during each of many trainings, and compares their results.

``python dev.py bench restarts``, or ``python tests/benchmark/bench_restarts.py [--trainings 30]
[--rollouts 240]``. Database (PostgreSQL), store server, proxy, runners and algorithm are separate
processes, as a supervisor runs them: what is killed with SIGKILL starts again 1 to 3 seconds later,
as it was. The model is simulated and deterministic, so each training must end like an undisturbed
one. The second part kills the proxy alone, for 3 seconds, during one batch of rollouts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from agl_testing.ports import free_port
from tests.plugins.agl_store_postgres.postgres_server import BINARIES, Server, running_server

pytestmark = pytest.mark.benchmark

TRAININGS: Final = 30
ROLLOUTS: Final = 240
PARTS: Final = ("store", "proxy", "database", "runner", "algorithm")
AGL: Final = str(Path(sys.executable).with_name("agl"))
_MODEL_SECONDS: Final = 0.05
_PROXY_AWAY: Final = 3.0
_PATIENCE: Final = 240.0

WORK: Final = '''
import agl_core as agl
from agl_algorithm_kit import run_batch
from agl_core.types import PromptTemplate, ProxyLLM
from openai import OpenAI


@agl.rollout(concurrent=True)
def agent(task, llm, prompt_template):
    """Reward: how near the answer of the model is to what the task asks for."""
    client = OpenAI(base_url=llm.endpoint, api_key="none", max_retries=MAX_RETRIES)
    total = 0.0
    for turn in range(CALLS):
        said = client.chat.completions.create(
            model=llm.model,
            messages=[{"role": "user", "content": f"{prompt_template.template} {task} {turn}"}],
        )
        total += float(said.choices[0].message.content)
    return total / CALLS


@agl.algo
async def climb(*, store, run):
    """Hill climbing: each step tries a neighbour of the best prompt on every task."""
    state = run.state or {"best": 0, "scores": [], "failed": 0}
    while len(state["scores"]) < STEPS:
        step = len(state["scores"])
        level = state["best"] + (1 if step % 3 else -1) if step else 0
        resources = {
            "prompt": PromptTemplate(template=str(level), engine="f-string"),
            "llm": ProxyLLM(endpoint="PROXY/v1", model="q"),
        }
        tasks = [f"t{n}" for n in range(TASKS)]
        batch = await run_batch(store, tasks, resources=resources, run=run, name=f"step-{step}")
        score = batch.score().mean
        known = [one for _, one in state["scores"]]
        best = level if not known or score > max(known) else state["best"]
        failed = state["failed"] + sum(one.earned is None for one in batch)
        state = {"best": best, "scores": [*state["scores"], [level, score]], "failed": failed}
        await run.save(state)
'''


class Model(ThreadingHTTPServer):
    """A chat completions server whose answers depend on the prompt alone."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a proxy that is killed resets its connections."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ModelHandler)
        self.calls = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _ModelHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Model

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls += 1
        time.sleep(_MODEL_SECONDS)  # it is a model that generates
        text = request["messages"][-1]["content"]
        level = int(text.split()[0])
        reward = max(0.0, 1 - abs(3 - level) / 5) * (0.5 + random.Random(text).random() / 2)
        message = {"role": "assistant", "content": f"{reward:.6f}"}
        reply = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": request["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
        }
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


class Part:
    """A program that a supervisor keeps running.

    Args:
        folder: Where it runs and logs.
        name: Name of its log.
        port: Port by which it shows that it serves; None if it does not serve.
        command: The program.
    """

    def __init__(self, folder: Path, name: str, port: int | None, *command: str) -> None:
        self._folder, self._name, self._port, self._command = folder, name, port, command
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("AGL_", "OPENAI_"))}
        with (self._folder / f"{self._name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if self._port is not None:
            self._wait_until_open(self._port)

    def _wait_until_open(self, port: int) -> None:
        assert self.process is not None
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            assert self.process.poll() is None, self.output()[-4000:]
            time.sleep(0.05)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it with its children, and wait for the end."""
        assert self.process is not None
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
            self.process.wait()

    def output(self) -> str:
        return (self._folder / f"{self._name}.log").read_text(errors="replace")


class Cluster:
    """The parts of a cluster around one PostgreSQL server."""

    def __init__(self, folder: Path, database: Server, model: Model, max_retries: int) -> None:
        self._folder, self._database, self._max_retries = folder, database, max_retries
        self.store_port, self.proxy_port = free_port(), free_port()
        self._store_url = f"http://127.0.0.1:{self.store_port}"
        self.parts = {
            "store": Part(
                *(folder, "store", self.store_port),
                *(AGL, "store", "--backend", "postgres", "--set", f"uri={database.uri}"),
                *("--port", str(self.store_port)),
            ),
            "proxy": Part(
                *(folder, "proxy", self.proxy_port),
                *(AGL, "proxy", "--port", str(self.proxy_port), "--store", self._store_url),
                *("--model", f"q={model.base_url}"),
            ),
        }

    def write(self, *, steps: int, tasks: int, calls: int) -> None:
        """Write the agent, the algorithm and the train file."""
        work = WORK
        for name, value in (
            ("MAX_RETRIES", self._max_retries),
            ("CALLS", calls),
            ("STEPS", steps),
            ("TASKS", tasks),
            ("PROXY", f"http://127.0.0.1:{self.proxy_port}"),
        ):
            work = work.replace(name, str(value))
        (self._folder / "work.py").write_text(work)
        (self._folder / "train.toml").write_text(
            'agent = "work.py:agent"\nalgorithm = "work.py:climb"\n'
            f'store = {{ type = "http", server_address = "{self._store_url}" }}\n'
        )

    def start(self) -> None:
        for part in self.parts.values():
            part.start()

    def stop(self) -> None:
        for part in reversed(self.parts.values()):
            if part.process is not None:
                part.kill()

    def training(self, name: str) -> tuple[Part, Part]:
        """Return runner and algorithm of one run, which are not started."""
        port = free_port()
        runner = Part(
            *(self._folder, f"{name}-runner", None, AGL, "runner", "train.toml"),
            *("--server", self._store_url, "-n", "2", "--concurrency", "4"),
        )
        algorithm = Part(
            *(self._folder, f"{name}-algorithm", None, AGL, "algorithm", "train.toml"),
            *("--run", name, "--port", str(port), "--json"),
        )
        return runner, algorithm

    def resumed(self, name: str) -> Part:
        return Part(
            *(self._folder, f"{name}-algorithm", None, AGL, "algorithm", "train.toml"),
            *("--run", name, "--resume", "--port", str(free_port()), "--json"),
        )

    def restart_database(self, away: float) -> None:
        self._database.kill()
        time.sleep(away)
        self._database.start()

    def state(self, run: str) -> dict[str, Any]:
        """Return what the algorithm of a run saved last."""
        url = f"{self._store_url}/v1/agl/resources/run:{run}"
        with urllib.request.urlopen(url, timeout=30) as reply:
            return json.load(reply)["resources"]["checkpoint"]["state"]

    def rollouts(self, run: str) -> list[dict[str, Any]]:
        """Return the rollouts of a run with their latest attempts."""
        url = f"{self._store_url}/v1/agl/rollouts?limit=-1"
        with urllib.request.urlopen(url, timeout=30) as reply:
            items = json.load(reply)["items"]
        return [one for one in items if (one["metadata"] or {}).get("run") == run]


@dataclass
class Outcome:
    """How one training ended.

    Attributes:
        part: What was killed; empty if nothing was.
        seconds: How long it took.
        state: What the algorithm saved last.
        statuses: Number of rollouts by status.
        repeated: Number of rollouts with more than one attempt.
    """

    part: str
    seconds: float
    state: dict[str, Any]
    statuses: Counter[str]
    repeated: int


def train(cluster: Cluster, name: str, part: str, delay: float, away: float) -> Outcome:
    """Run a training, and kill one part once.

    Args:
        cluster: The cluster.
        name: Name of the run.
        part: What is killed; empty for nothing.
        delay: Seconds until that, from when the run's first rollouts are in the store.
        away: Seconds until it starts again.
    """
    runner, algorithm = cluster.training(name)
    began = time.monotonic()
    algorithm.start()
    runner.start()
    try:
        if part:
            _until(lambda: bool(cluster.rollouts(name)), algorithm)
            time.sleep(delay)
        if part == "database":
            cluster.restart_database(away)
        elif part:
            killed = {**cluster.parts, "runner": runner, "algorithm": algorithm}[part]
            killed.kill()
            time.sleep(away)
            if part == "algorithm":
                algorithm = killed = cluster.resumed(name)
            killed.start()
        assert algorithm.process is not None
        code = algorithm.process.wait(_PATIENCE)
        assert code == 0, algorithm.output()[-4000:]
        found = cluster.rollouts(name)
        return Outcome(
            part,
            time.monotonic() - began,
            cluster.state(name),
            Counter(one["status"] for one in found),
            sum(one["attempt"]["sequence_id"] > 1 for one in found),
        )
    finally:
        algorithm.kill()
        runner.kill()


@contextmanager
def clusters(model_retries: int = 2) -> Iterator[Cluster]:
    """Run a cluster with a database of its own."""
    with (
        tempfile.TemporaryDirectory() as place,
        running_server() as database,
        Model() as model,
    ):
        thread = Thread(target=model.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        folder = Path(place)
        cluster = Cluster(folder, database, model, model_retries)
        try:
            cluster.start()
            yield cluster
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
            raise
        finally:
            cluster.stop()
            model.shutdown()


def trainings(
    number: int,
    *,
    parts: Sequence[str] = PARTS,
    seed: int = 7,
    steps: int = 6,
    tasks: int = 24,
) -> tuple[Outcome, list[Outcome]]:
    """Return an undisturbed training, and trainings during each of which one part was killed.

    Args:
        number: Number of trainings that are disturbed.
        parts: What is killed, in turn.
        seed: Seed of when it is killed and how long it is away.
        steps: Steps of each training.
        tasks: Rollouts of each step.
    """
    chance = random.Random(seed)
    with clusters() as cluster:
        cluster.write(steps=steps, tasks=tasks, calls=3)
        calm = train(cluster, "calm", "", 0, 0)
        disturbed: list[Outcome] = []
        for index in range(number):
            delay = chance.uniform(0.2, max(0.5, 0.8 * calm.seconds - 4))
            part = parts[index % len(parts)]
            outcome = train(cluster, f"run-{index}", part, delay, chance.uniform(1, 3))
            disturbed.append(outcome)
            same = "same" if outcome.state == calm.state else "DIFFERENT"
            print(
                f"{index + 1:3} {part:10} killed after {delay:4.1f} s: {outcome.seconds:5.1f} s, "
                f"{dict(outcome.statuses)}, {outcome.repeated} repeated, {same} result",
                flush=True,
            )
        return calm, disturbed


def proxy_restart(rollouts: int, max_retries: int) -> Outcome:
    """Run one batch of rollouts, during which the proxy is away for 3 seconds."""
    with clusters(max_retries) as cluster:
        cluster.write(steps=1, tasks=rollouts, calls=3)
        return train(cluster, "batch", "proxy", 1.0, _PROXY_AWAY)


def _until(check: Any, part: Part) -> None:
    assert part.process is not None
    deadline = time.monotonic() + _PATIENCE
    while not check():
        assert part.process.poll() is None, part.output()[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(BINARIES is None, reason="needs PostgreSQL's programs")
def test_restarts():
    main([])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trainings", type=int, default=TRAININGS)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    options = parser.parse_args(arguments)
    for max_retries in (2, 0) if options.rollouts else ():
        outcome = proxy_restart(options.rollouts, max_retries)
        print(
            f"proxy away for {_PROXY_AWAY:g} s, clients with {max_retries} retries: "
            f"{outcome.state['failed']} of {options.rollouts} rollouts without a score, "
            f"{outcome.repeated} repeated, {dict(outcome.statuses)}",
            flush=True,
        )
    if options.trainings:
        calm, disturbed = trainings(options.trainings, parts=options.parts, seed=options.seed)
        same = sum(one.state == calm.state for one in disturbed)
        failed = sum(one.state["failed"] for one in disturbed)
        print(f"{same} of {len(disturbed)} like the undisturbed one; {failed} rollouts failed")


if __name__ == "__main__":
    main()
