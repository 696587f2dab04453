"""Ctrl+C pressed several times in a run of threads: none is lost, none escapes."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from agl_core.execution import ExecutionEvent
from agl_core.store import LightningStore
from agl_exec_shm import SharedMemoryExecutionStrategy, strategy as shm
from agl_store_memory import InMemoryLightningStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

PATIENT = {"graceful_delay": 60.0, "join_timeout": 120.0}
"""Only a second press ends these in time."""
SOON = 20.0


def press() -> None:
    signal.raise_signal(signal.SIGINT)


async def presses_once(store: LightningStore, event: ExecutionEvent) -> None:
    press()
    await asyncio.Event().wait()


async def deaf(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
    """Runs until it is cancelled."""
    await asyncio.Event().wait()


async def idle(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
    await event.wait_async()


class Presses(logging.Handler):
    """Presses Ctrl+C while a message is written."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message

    def emit(self, record: logging.LogRecord) -> None:
        if self.message in record.getMessage():
            press()


@pytest.fixture
def log():
    logger = logging.getLogger(shm.__name__)
    added: list[logging.Handler] = []

    def add(handler: logging.Handler) -> None:
        added.append(handler)
        logger.addHandler(handler)

    yield add
    for handler in added:
        logger.removeHandler(handler)


def execute(
    algorithm: Any, runner: Any, store: LightningStore | None = None, **options: Any
) -> Any:
    """Run both to their end; return the strategy. No thread is left."""
    before = set(threading.enumerate())
    strategy = SharedMemoryExecutionStrategy(2, **{**PATIENT, **options})
    start = time.monotonic()
    strategy.execute(algorithm, runner, store or InMemoryLightningStore())
    assert time.monotonic() - start < SOON
    assert set(threading.enumerate()) <= before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return strategy


def test_a_second_press_while_the_first_is_announced(log: Callable[[logging.Handler], None]):
    log(Presses("Press Ctrl+C again"))
    assert execute(presses_once, deaf).interrupted


def test_a_second_press_while_the_algorithm_cleans_up():
    cleaned: list[str] = []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        try:
            await presses_once(store, event)
        finally:
            press()
            cleaned.append("algorithm")

    assert execute(algorithm, deaf).interrupted


def test_a_press_while_a_run_ends_hurries_it():
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        return

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await event.wait_async()
        if worker_id == 0:
            # In the main thread, which waits for this one.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await asyncio.Event().wait()

    assert execute(algorithm, runner).interrupted


def test_a_press_while_open_attempts_are_failed_leaves_none_open():
    class Pressed(InMemoryLightningStore):
        async def update_attempt(self, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("status") == "failed":
                press()
            return await super().update_attempt(*args, **kwargs)

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await store.enqueue_rollout(1)
        await store.dequeue_rollout("Worker-0")

    store = Pressed()
    assert execute(algorithm, idle, store).interrupted
    (rollout,) = asyncio.run(store.query_rollouts())
    assert rollout.status == "failed"


def test_a_second_press_at_any_line_of_the_strategy():
    """One run for each line that the main thread executes after the first press."""
    line, reached = 0, True
    while reached:
        line += 1
        reached = _pressed_at(line)
    assert line > 20


def _pressed_at(line: int) -> bool:
    """Run with a second press at the n-th line after the first; return whether there was one."""
    seen = 0
    armed = False

    def trace_lines(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal seen
        if event == "line" and armed:
            seen += 1
            if seen == line:
                press()
        return trace_lines

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        return trace_lines if frame.f_code.co_filename == shm.__file__ else None

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        nonlocal armed
        armed = True
        await presses_once(store, event)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert execute(algorithm, idle).interrupted
    finally:
        sys.settrace(before)
    return seen >= line


def test_the_programs_own_handler_stays_in_place():
    got: list[int] = []

    def own(signum: int, frame: object) -> None:
        got.append(signum)
        raise KeyboardInterrupt

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        press()

    before = signal.signal(signal.SIGINT, own)
    try:
        strategy = SharedMemoryExecutionStrategy(2)
        strategy.execute(algorithm, idle, InMemoryLightningStore())
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    assert strategy.interrupted
    assert got == [signal.SIGINT]
