"""Ctrl+C, kills and hung agents, in separate processes with real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import is_running

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

SCRIPT = """
import asyncio, json, logging, sys, time
from agl_core.agent import rollout
from agl_algorithm_kit import run_batch
from agl_core.algorithm import algo
from agl_core.trainer import Trainer

options, kind = json.loads(sys.argv[1]), sys.argv[2]
logging.basicConfig(level=logging.WARNING, format="%(message)s")

def ready(task):
    sys.stdout.write("RUNNING\\n")  # in one piece
    sys.stdout.flush()

@rollout
async def waits(task, prompt_template):
    ready(task)
    await asyncio.sleep(60)

@rollout
def hangs(task, prompt_template):
    ready(task)
    time.sleep(60)

@rollout
async def blocks(task, prompt_template):
    ready(task)
    time.sleep(60)

@algo
async def search(store, initial_resources):
    await run_batch(store, list(range(6)), resources=initial_resources)

@algo
def sync_search(store, initial_resources):
    asyncio.run(run_batch(store, list(range(6)), resources=initial_resources))

if __name__ == "__main__":
    from agl_core.types import PromptTemplate
    prompt = PromptTemplate(template="x", engine="f-string")
    algorithm = sync_search if options.pop("sync", False) else search
    trainer = Trainer(algorithm=algorithm, initial_resources={"p": prompt}, **options)
    trainer.fit({"waits": waits, "hangs": hangs, "blocks": blocks}[kind])
    rollouts = asyncio.run(trainer.store.query_rollouts()).items
    print(json.dumps({
        "interrupted": trainer.interrupted,
        "rollouts": sorted(r.status for r in rollouts),
        "attempts": sorted(r.attempt.status for r in rollouts if hasattr(r, "attempt")),
    }), flush=True)
"""

SHM = {"type": "shm", "graceful_delay": 0.5, "join_timeout": 3}
CS = {"type": "cs", "server_port": 0, "graceful_timeout": 0.5, "terminate_timeout": 1}


class Run:
    """A training run as a process group that gets Ctrl+C, as in a user's terminal."""

    def __init__(self, folder: Path, kind: str, **options: Any) -> None:
        script = folder / "train.py"
        script.write_text(SCRIPT)
        self.process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(options), kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until_running(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "RUNNING\n"

    def wait_until_it_says(self, beginning: str) -> None:
        assert self.process.stderr is not None
        assert any(line.startswith(beginning) for line in self.process.stderr)

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, within: float) -> dict[str, Any]:
        """Return the report that the run prints at its end."""
        start = time.monotonic()
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        assert "KeyboardInterrupt" not in err, err
        assert time.monotonic() - start < within
        return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("kind", ["waits", "hangs", "blocks"])
@pytest.mark.parametrize(
    ("strategy", "n_runners"), [(SHM, 1), (SHM, 2), (CS, 2)], ids=["shm-1", "shm-2", "cs-2"]
)
def test_ctrl_c_stops_cleanly(tmp_path: Path, strategy: Any, n_runners: int, kind: str) -> None:
    if (strategy, n_runners, kind) == (SHM, 1, "blocks"):
        pytest.skip("Ctrl+C in an agent that blocks the main thread is the agent's, see below")
    run = Run(tmp_path, kind, strategy=strategy, n_runners=n_runners)
    run.wait_until_running()
    run.press_ctrl_c()
    report = run.end(within=15)
    assert report["interrupted"]
    assert set(report["rollouts"]) <= {"failed", "cancelled"}
    # A claim whose reply came too late for its runner is returned: unresponsive.
    assert {"failed"} <= set(report["attempts"]) <= {"failed", "unresponsive"}


@pytest.mark.parametrize("strategy", [SHM, CS], ids=["shm", "cs"])
def test_ctrl_c_leaves_a_sync_algorithm_behind(tmp_path: Path, strategy: Any) -> None:
    run = Run(tmp_path, "waits", strategy=strategy, n_runners=2, sync=True)
    run.wait_until_running()
    run.press_ctrl_c()
    report = run.end(within=15)
    assert report["interrupted"]
    assert set(report["attempts"]) == {"failed"}


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    patient = {"type": "shm", "graceful_delay": 60, "join_timeout": 120}
    run = Run(tmp_path, "waits", strategy=patient, n_runners=2)
    run.wait_until_running()
    run.press_ctrl_c()
    run.wait_until_it_says("Stopping. Press Ctrl+C again")
    run.press_ctrl_c()
    report = run.end(within=15)
    assert report["interrupted"]
    assert set(report["attempts"]) == {"failed"}


@pytest.mark.timing
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("kind", ["waits", "blocks"])
def test_no_runner_outlives_a_trainer_that_was_killed(
    tmp_path: Path, method: str, kind: str
) -> None:
    run = Run(tmp_path, kind, strategy={**CS, "start_method": method}, n_runners=2)
    run.wait_until_running()
    children = psutil.Process(run.process.pid).children(recursive=True)
    assert len(children) >= 2
    run.process.kill()
    deadline = time.monotonic() + 2.0
    # An orphan that has ended stays a zombie until the init process reaps it.
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [child for child in children if is_running(child)] == []
    run.process.communicate()
