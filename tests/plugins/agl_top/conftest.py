"""A store in a file with rollouts in every state, and the commands as processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agl_cli_kit import main
from agl_core.store import LightningStore
from agl_core.types import AttemptStatus, PromptTemplate, Span
from agl_store_sqlite import SqliteLightningStore


@dataclass
class Filled:
    """A filled store file, and what is in it."""

    path: Path
    done: str
    failed: str
    running: str
    queued: str

    @property
    def options(self) -> list[str]:
        return ["--path", str(self.path)]

    def change(self, call: Callable[[LightningStore], Any]) -> Any:
        """Open the store, make a change and close it."""

        async def changed() -> Any:
            store = SqliteLightningStore(str(self.path))
            try:
                return await call(store)
            finally:
                await store.close()

        return asyncio.run(changed())


def reward(rollout_id: str, attempt_id: str, value: float) -> Span:
    """Return the span of a reward."""
    return Span.from_attributes(
        attributes={
            "agentlightning.reward.0.name": "primary",
            "agentlightning.reward.0.value": value,
        },
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=1,
        name="agentlightning.annotation",
        start_time=1.0,
        end_time=1.0,
    )


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    path = tmp_path / "agl.db"

    async def fill() -> Filled:
        store = SqliteLightningStore(str(path))
        prompt = PromptTemplate(template="Answer {question}", engine="f-string")
        await store.add_resources({"main": prompt})
        ids: list[str] = []
        statuses: list[AttemptStatus] = ["succeeded", "failed", "running"]
        for number, status in enumerate(statuses):
            task = {"question": f"task {number}\x1b[31m"}
            await store.enqueue_rollout(task, mode="train")
            claim = await store.dequeue_rollout(f"runner-{number}")
            assert claim is not None
            ids.append(claim.rollout_id)
            attempt = claim.attempt.attempt_id
            if status == "succeeded":
                await store.add_span(reward(claim.rollout_id, attempt, 0.75))
            failure = {"error": "RoomNotFound: Birch"} if status == "failed" else {}
            await store.update_attempt(claim.rollout_id, attempt, status=status, metadata=failure)
        await store.update_rollout(ids[1], status="failed")
        await store.update_worker("runner-2", {"cpu_usage_pct": 31.4, "gpus": [{"util_pct": 88}]})
        queued = await store.enqueue_rollout("waits")
        await store.close()
        done, failed, running = ids
        return Filled(path, done, failed, running, queued.rollout_id)

    return asyncio.run(fill())


@dataclass
class Done:
    """The output of a command, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def agl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Run ``agl`` to its end."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        code = main(arguments)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture
def started(tmp_path: Path) -> Any:
    """Start ``agl`` in the background; it is ended with the test."""
    processes: list[subprocess.Popen[Any]] = []

    def start(*arguments: str, **how: Any) -> subprocess.Popen[Any]:
        command = [sys.executable, "-m", "agl_cli_kit", *arguments]
        process = subprocess.Popen(command, cwd=tmp_path, **how)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


TERMINAL = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
