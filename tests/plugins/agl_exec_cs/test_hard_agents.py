"""Agents that end their process, leave things behind, or raise errors without a readable text."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agl_algorithm_kit import run_batch
from agl_core.agent import rollout
from agl_core.algorithm import algo
from agl_core.errors import RunFailedError
from agl_core.store import LightningStore
from agl_core.trainer import Trainer
from agl_core.types import PromptTemplate, Rollout
from agl_store_memory import InMemoryLightningStore
from agl_tracer_dummy import DummyTracer
from tests.processes import is_running

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

LONG = 600
PROMPT = PromptTemplate(template="x", engine="f-string")


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@rollout
def hard(task: Any, prompt_template: Any) -> float:
    """End the process, or raise, as the task says."""
    if task == "exit":
        os._exit(0)
    elif task == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LONG)
    elif task in ("sigint", "sighup"):
        os.kill(os.getpid(), getattr(signal, task.upper()))
    elif task == "surrogate":
        raise ValueError("bad \ud800 text")
    elif task == "unreadable":
        raise Unreadable
    elif task == "thread":
        threading.Thread(target=time.sleep, args=(LONG,), name="kept", daemon=False).start()
    elif task == "child":
        context = multiprocessing.get_context("fork")
        context.Process(target=time.sleep, args=(LONG,), daemon=False).start()
    elif isinstance(task, list):
        subprocess.run(task, check=True)
    return 1.0


def interrupt_exit_or_fork(task: str) -> float:
    """Raise what ends a program, or return from a forked child; return the child's exit code."""
    if task == "interrupt":
        raise KeyboardInterrupt  # as some libraries do when they give up
    if task == "exit":
        sys.exit(3)
    if task == "ok" or (pid := os.fork()):
        return 0.0 if task == "ok" else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if task == "child exits":
        sys.exit(4)
    if task == "child says why":
        sys.exit("no room")
    if task == "child raises":
        raise ValueError("in the child")
    return 0.5


@rollout
def ends_oddly(task: str) -> float:
    return interrupt_exit_or_fork(task)


@rollout
async def ends_oddly_async(task: str) -> float:
    return interrupt_exit_or_fork(task)


@rollout
async def leaves_an_executor_busy(task: Any, prompt_template: Any) -> float:
    asyncio.get_running_loop().run_in_executor(None, time.sleep, LONG)
    return 1.0


def fit(tasks: list[Any], agent: Any = hard) -> list[Rollout]:
    found: list[Rollout] = []

    @algo
    async def run(store: LightningStore) -> None:
        outcome = await run_batch(store, tasks, resources={"p": PROMPT})
        found.extend(each.rollout for each in outcome)

    trainer = Trainer(
        algorithm=run,
        store=InMemoryLightningStore(),
        tracer="dummy",
        strategy={"type": "cs", "server_port": 0, "start_method": "fork"},
    )
    trainer.fit(agent)
    return found


def test_a_runner_that_an_agent_ends_is_replaced_and_the_attempt_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = fit(["exit", "ok", "sigterm", "ok"])
    assert [each.status for each in done] == ["failed", "succeeded", "failed", "succeeded"]
    assert "runner-0 died with exit code 0; replacing it" in caplog.text
    assert "runner-0 died with exit code -15; replacing it" in caplog.text


def test_deaths_between_finished_attempts_do_not_end_the_run() -> None:
    done = fit(["exit", "ok"] * 5)  # more deaths than replacements in a row
    assert [each.status for each in done] == ["failed", "succeeded"] * 5


def test_signals_of_the_terminal_end_no_single_runner() -> None:
    assert [each.status for each in fit(["sigint", "sighup", "ok"])] == ["succeeded"] * 3


ODD_ENDS = {
    "interrupt": None,
    "exit": None,
    "child returns": 0.0,
    "child exits": 4.0,
    "child says why": 1.0,
    "child raises": 1.0,
    "ok": 0.0,
}
"""Tasks, and the rewards of their rollouts, or None for a rollout that fails."""


@pytest.mark.parametrize("agent", [ends_oddly, ends_oddly_async], ids=["sync", "async"])
def test_interrupts_exits_and_forks_of_an_agent_end_no_runner(
    agent: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = time.monotonic()
    found: list[tuple[Any, float | None]] = []

    @algo
    async def run(store: LightningStore) -> None:
        outcome = await run_batch(store, list(ODD_ENDS), resources={"p": PROMPT}, timeout=60)
        found.extend((each.rollout.input, each.reward) for each in outcome)

    strategy = {"type": "cs", "server_port": 0, "start_method": "fork"}
    Trainer(algorithm=run, tracer="dummy", strategy=strategy).fit(agent)
    assert dict(found) == ODD_ENDS
    assert time.monotonic() - before < 60
    assert "replacing it" not in caplog.text
    assert "left behind" not in caplog.text
    said = capfd.readouterr().err
    assert "no room\n" in said
    assert "ValueError: in the child" in said


class InterruptedTracer(DummyTracer):
    """Its library gives up while a runner starts."""

    def init_worker(self, *args: Any, **options: Any) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_before_the_first_rollout_ends_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = {"type": "cs", "server_port": 0, "start_method": "fork"}
    trainer = Trainer(tracer=InterruptedTracer(), strategy=strategy, n_runners=2)
    with pytest.raises(RuntimeError, match="KeyboardInterrupt before the first rollout"):
        trainer.dev(ends_oddly, ["ok", "ok"])
    assert "the runner goes on" not in caplog.text


def test_errors_without_a_readable_text_fail_their_attempts() -> None:
    done = fit(["surrogate", "unreadable", "ok"])
    assert [each.status for each in done] == ["failed", "failed", "succeeded"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Return a file with the log of the runners, which inherit its handler."""
    handler = logging.FileHandler(tmp_path / "log")
    logger = logging.getLogger("agl_exec_cs")
    logger.addHandler(handler)
    yield tmp_path / "log"
    logger.removeHandler(handler)
    handler.close()


@pytest.mark.parametrize(
    ("task", "agent", "said"),
    [
        ("thread", hard, "runner-0 ends with threads that agents left behind: kept"),
        ("x", leaves_an_executor_busy, "runner-0 ends with threads that agents left behind: async"),
        ("child", hard, "Ending processes that agents left behind in runner-0: "),
    ],
)
def test_what_agents_leave_behind_is_named_and_ended(
    task: str, agent: Any, said: str, log: Path
) -> None:
    others = psutil.Process().children(recursive=True)
    before = time.monotonic()
    assert [each.status for each in fit([task], agent)] == ["succeeded"]
    assert time.monotonic() - before < 8
    assert said in log.read_text()
    assert set(psutil.Process().children(recursive=True)) <= set(others)


def test_a_program_whose_parent_has_ended_is_found(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    program = f"sleep {LONG} & echo $! > {file}"
    assert [each.status for each in fit([["sh", "-c", program]])] == ["succeeded"]
    pid = int(file.read_text())
    assert not is_running(pid)


def test_a_program_of_a_runner_that_died_is_found(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    program = f"sleep {LONG} & echo $! > {file}; kill -KILL $PPID"
    with pytest.raises(RunFailedError, match="1 of 1 failed: its runner died"):
        fit([["sh", "-c", program]])
    pid = int(file.read_text())
    assert not is_running(pid)
