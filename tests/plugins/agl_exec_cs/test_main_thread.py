"""Sync agents in the main thread of their runner's process."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any

import pytest

from agl_algorithm_kit import run_batch
from agl_core.agent import rollout
from agl_core.algorithm import algo
from agl_core.store import LightningStore
from agl_core.trainer import Trainer
from agl_core.types import PromptTemplate, RolloutConfig
from agl_exec_cs import ClientServerExecutionStrategy
from agl_exec_cs.config import ClientServerConfig

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signal.alarm is of POSIX")

PROMPT = PromptTemplate(template="x", engine="f-string")


def limited(seconds: float) -> float:
    """Sleep, for 0.2 s at most, by an alarm, as math-verify limits its time."""

    def ring(signum: int, frame: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        time.sleep(seconds)
    except TimeoutError:
        return 0.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 1.0


@rollout
def checks(task: float) -> float:
    return limited(task)


@rollout
def where(task: Any) -> float:
    if task == "long":
        time.sleep(600)
    return float(threading.current_thread() is threading.main_thread())


def rewards_of(
    agent: Any, tasks: list[Any], *, timeout: float = 60, config: Any = None, **options: Any
) -> list[tuple[str, float | None]]:
    found: list[tuple[str, float | None]] = []

    @algo
    async def run(store: LightningStore) -> None:
        batch = await run_batch(
            store, tasks, resources={"p": PROMPT}, config=config, timeout=timeout
        )
        found.extend((each.rollout.status, each.reward) for each in batch)

    strategy = {"type": "cs", "server_port": 0, "sync_agents": "main_thread", **options}
    Trainer(algorithm=run, strategy=strategy, tracer="dummy", n_runners=2).fit(agent)
    return found


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_alarm_rings_in_an_agent(method: str) -> None:
    found = rewards_of(checks, [0, 5, 0, 5], start_method=method)
    assert found == [("succeeded", 1.0), ("succeeded", 0.0)] * 2


def test_an_agent_that_runs_too_long_is_interrupted_and_the_next_one_runs() -> None:
    began = time.monotonic()
    config = RolloutConfig(timeout_seconds=0.5)
    found = rewards_of(where, ["long", "long", "a", "b", "c"], config=config)
    assert found == [("failed", None)] * 2 + [("succeeded", 1.0)] * 3
    assert time.monotonic() - began < 30


def test_the_end_of_a_run_interrupts_an_agent() -> None:
    began = time.monotonic()
    found = rewards_of(where, ["a", "long"], timeout=3, graceful_timeout=1)
    assert found == [("succeeded", 1.0), ("cancelled", None)]
    assert time.monotonic() - began < 30


def test_by_default_sync_agents_have_threads() -> None:
    assert ClientServerExecutionStrategy(ClientServerConfig()).sync_agents == "thread"
