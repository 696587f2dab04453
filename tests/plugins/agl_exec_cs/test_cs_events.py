"""Stop events wake tasks, threads and processes, and work after a waiter has died."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agl_core.execution import ExecutionEvent, ThreadingEvent
from agl_exec_cs import MultiprocessingEvent


@pytest.fixture(params=["threading", "fork", "spawn", "forkserver"])
def event(request: pytest.FixtureRequest) -> Any:
    if request.param == "threading":
        return ThreadingEvent()
    return MultiprocessingEvent(multiprocessing.get_context(request.param))


def open_descriptors() -> int:
    listing = Path("/proc/self/fd")
    return len(list(listing.iterdir())) if listing.exists() else 0


def test_is_an_execution_event(event: ExecutionEvent) -> None:
    assert isinstance(event, ExecutionEvent)


def test_stays_set_until_cleared(event: ExecutionEvent) -> None:
    assert not event.is_set()
    assert not event.wait(timeout=0.01)
    event.set()
    event.set()
    assert event.is_set()
    assert event.wait(timeout=0)
    assert event.wait()
    event.clear()
    assert not event.is_set()
    event.set()
    assert event.is_set()


@pytest.mark.parametrize("timeout", [45 * 86_400, 3_000_000_000.0])
def test_a_wait_can_be_long(event: ExecutionEvent, timeout: float) -> None:
    event.set()
    assert event.wait(timeout)  # poll() takes at most 24.8 days


def test_a_long_wait_ends_after_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl_exec_cs.waits._LONGEST_WAIT", 0.02)
    began = time.monotonic()
    assert not MultiprocessingEvent().wait(0.1)
    assert 0.1 <= time.monotonic() - began < 5


def test_wakes_a_thread(event: ExecutionEvent) -> None:
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(event.wait(10)))
    thread.start()
    event.set()
    thread.join(10)
    assert seen == [True]


async def test_wakes_every_task_from_another_thread(event: ExecutionEvent) -> None:
    waiting = [asyncio.create_task(event.wait_async()) for _ in range(3)]
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in waiting)
    threading.Thread(target=event.set).start()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    await asyncio.wait_for(event.wait_async(), 5)  # still set


async def test_a_cancelled_waiter_leaves_nothing(event: ExecutionEvent) -> None:
    before = open_descriptors()
    for _ in range(50):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(event.wait_async(), 0.001)
    assert open_descriptors() <= before + 2
    event.set()
    await asyncio.wait_for(event.wait_async(), 5)


def test_set_after_the_waiters_loop_is_gone() -> None:
    event = ThreadingEvent()
    loop = asyncio.new_event_loop()
    task = loop.create_task(event.wait_async())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()  # abandoned: the task never ran its clean-up
    event.set()
    assert event.is_set()
    task.get_coro().close()  # pyright: ignore[reportOptionalMemberAccess]
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def _wait_then_set(stop: MultiprocessingEvent, answer: MultiprocessingEvent) -> None:
    asyncio.run(stop.wait_async())
    answer.set()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_crosses_processes(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    stop, answer = MultiprocessingEvent(context), MultiprocessingEvent(context)
    child = context.Process(target=_wait_then_set, args=(stop, answer))
    child.start()
    stop.set()
    assert answer.wait(30)
    child.join(30)
    assert child.exitcode == 0


def _wait_for_ever(stop: MultiprocessingEvent, ready: MultiprocessingEvent) -> None:
    ready.set()
    stop.wait()


def test_set_does_not_wait_for_a_waiter_that_was_killed() -> None:
    """``multiprocessing.Event.set`` hangs here: it waits for the dead process to wake up."""
    context = multiprocessing.get_context("fork")
    stop, ready = MultiprocessingEvent(context), MultiprocessingEvent(context)
    child = context.Process(target=_wait_for_ever, args=(stop, ready))
    child.start()
    assert ready.wait(30)
    time.sleep(0.1)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    done = threading.Thread(target=stop.set, daemon=True)
    done.start()
    done.join(5)
    assert not done.is_alive()
    assert stop.is_set()
