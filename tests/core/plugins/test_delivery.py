"""How events reach listeners: in order, in a thread of the listener, and all of them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from agl_core.plugins import (
    EventPipe,
    _delivery as delivery,
    add_listener,
    flush_listeners,
    hookimpl,
    notify,
    remove_listener,
)
from agl_core.plugins._events import has_listeners, heard_events

pytestmark = pytest.mark.usefixtures("here")


class Held:
    """A listener that processes an event when it is let go."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.go = threading.Semaphore(0)

    @hookimpl
    def algorithm_step(self, step: int) -> None:
        self.go.acquire()
        self.heard.append(step)


class Quick(Held):
    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Event()

    @hookimpl
    def algorithm_step(self, step: int) -> None:
        self.heard.append(step)
        self.arrived.set()


def step(number: int, **metrics: float) -> None:
    notify("algorithm_step", algorithm="apo", step=number, metrics=metrics)


@pytest.fixture
def held():
    held = Held()
    name = add_listener(held, "held")
    yield held
    held.go.release(100)
    remove_listener(name)


def test_a_held_listener_delays_neither_the_sender_nor_other_listeners(held: Held):
    quick = Quick()
    name = add_listener(quick)
    step(1)  # returns, and the quick one hears it
    assert quick.arrived.wait(20)
    assert (held.heard, quick.heard) == ([], [1])
    remove_listener(name)


def test_events_arrive_in_the_order_in_which_they_were_sent(held: Held):
    for number in range(20):
        step(number)
    held.go.release(20)
    assert flush_listeners(20)
    assert held.heard == list(range(20))


def test_a_wait_with_a_limit_ends_at_the_limit(held: Held):
    step(1)
    assert not flush_listeners(0.01)
    held.go.release()
    assert flush_listeners(20)


def test_a_removed_listener_has_processed_every_event(held: Held):
    step(1)
    removing = threading.Thread(target=remove_listener, args=("held",))
    removing.start()
    removing.join(0.05)
    assert removing.is_alive()
    held.go.release()
    removing.join(20)
    assert held.heard == [1]


def test_a_closed_mailbox_takes_no_event_that_a_flush_would_wait_for():
    delivered: list[str] = []
    mailbox = delivery.Mailbox("gone", lambda event, _: delivered.append(event))
    mailbox.put("first", {})
    mailbox.close()
    mailbox.put("late", {})  # from a thread that was sending while the listener was removed
    assert mailbox.drain(time.monotonic() + 0.1)
    assert delivered == ["first"]


def test_a_listener_may_remove_itself():
    class Once(Quick):
        @hookimpl
        def algorithm_step(self, step: int) -> None:
            super().algorithm_step(step)
            remove_listener("once")

    once = Once()
    add_listener(once, "once")
    step(1)
    assert once.arrived.wait(20)
    flush_listeners()
    step(2)
    assert once.heard == [1]


def test_who_is_waited_for_is_said(held: Held, caplog, monkeypatch):
    monkeypatch.setattr(delivery, "_SECONDS_BETWEEN_LINES", 0.01)
    step(1)
    step(2)
    with caplog.at_level(logging.WARNING):
        flush_listeners(0.2)
    assert "waiting for the listener 'held': 2 events left" in caplog.text


def test_a_listener_that_falls_far_behind_is_named_once(held: Held, caplog, monkeypatch):
    monkeypatch.setattr(delivery, "_FAR_BEHIND", 3)
    with caplog.at_level(logging.WARNING):
        for number in range(10):
            step(number)
    (line,) = [r.getMessage() for r in caplog.records if "behind" in r.getMessage()]
    assert "'held' is 3 events behind; nothing is lost" in line
    held.go.release(10)
    flush_listeners()
    assert len(held.heard) == 10


def test_a_listener_runs_in_the_context_of_the_sender():
    place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")
    seen: list[str] = []

    class Where:
        @hookimpl
        def algorithm_step(self) -> None:
            seen.append(place.get())

        @hookimpl
        async def resources_changed(self) -> None:
            seen.append(place.get())

    name = add_listener(Where())
    place.set("run 7")
    step(1)
    notify("resources_changed", resources=None, origin="x")
    remove_listener(name)
    assert seen == ["run 7", "run 7"]


def test_async_listeners_are_awaited_one_event_at_a_time_in_one_loop():
    loops: set[int] = set()
    active: list[int] = []
    heard: list[tuple[int, list[int]]] = []

    class Slow:
        @hookimpl
        async def algorithm_step(self, step: int) -> None:
            loops.add(id(asyncio.get_running_loop()))
            active.append(step)
            await asyncio.sleep(0.01)
            heard.append((step, list(active)))
            active.remove(step)

    name = add_listener(Slow())
    for number in range(5):
        step(number)
    remove_listener(name)
    assert heard == [(number, [number]) for number in range(5)]
    assert len(loops) == 1


def test_a_task_that_an_async_listener_starts_goes_on_between_events():
    done = threading.Event()

    class Background:
        @hookimpl
        async def algorithm_step(self) -> None:
            async def later() -> None:
                await asyncio.sleep(0.01)
                done.set()

            self.task = asyncio.create_task(later())

    name = add_listener(Background())
    step(1)
    assert done.wait(20)
    remove_listener(name)


def test_an_async_listener_that_raises_is_reported(caplog):
    class Failing:
        @hookimpl
        async def algorithm_step(self) -> None:
            raise RuntimeError("the webhook is away")

    name = add_listener(Failing(), "hook")
    with caplog.at_level(logging.ERROR):
        step(1)
        step(2)
        remove_listener(name)
    failures = [r for r in caplog.records if "'hook' failed in algorithm_step" in r.getMessage()]
    assert [bool(record.exc_info) for record in failures] == [True, False]


def test_an_inline_listener_is_called_before_notify_returns_and_is_not_asked_for_data():
    quick = Quick()
    name = add_listener(quick, inline=True)
    step(1)
    assert quick.heard == [1]
    assert has_listeners()
    assert not has_listeners("algorithm_step")
    remove_listener(name)


def test_tryfirst_and_trylast_order_listeners():
    heard: list[str] = []

    def listener(said: str) -> object:
        class Ordered:
            @hookimpl(tryfirst=said == "first", trylast=said == "last")
            def algorithm_step(self) -> None:
                heard.append(said)

        return Ordered()

    for said in ("last", "some", "first"):
        add_listener(listener(said), said, inline=True)
    step(1)
    assert heard == ["first", "some", "last"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_mailbox_of_its_own(held: Held):
    step(1)
    child = multiprocessing.get_context("fork").Process(target=_step_alone, args=(held,))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    held.go.release()
    flush_listeners()
    assert held.heard == [1]


def _step_alone(held: Held) -> None:
    held.go.release(2)
    step(2)
    flush_listeners()
    if held.heard != [2]:
        raise AssertionError(held.heard)


LATE = """
import sys, time
from agl_core.plugins import add_listener, hookimpl, notify

class Late:
    @hookimpl
    def algorithm_step(self, step):
        time.sleep(0.02)
        print("heard", step, flush=True)

def send():
    add_listener(Late())
    for step in range(5):
        notify("algorithm_step", algorithm="x", step=step, metrics={})

if sys.argv[1] == "here":
    send()
else:
    import multiprocessing
    process = multiprocessing.get_context("fork").Process(target=send)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("where", ["here", "child"])
def test_a_process_that_ends_in_order_delivers_everything(where: str):
    done = subprocess.run(
        [sys.executable, "-c", LATE, where], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [word for at in range(5) for word in ("heard", str(at))]


# -- child processes -------------------------------------------------------------------------------


class Unpicklable(Exception):
    def __init__(self, text: str, lock: Any) -> None:
        super().__init__(text)
        self.lock = lock


def _child(sender: Any) -> None:
    sender.install()
    step(1, reward=0.5)
    error = Unpicklable("no", threading.Lock())
    notify("run_finished", run_id="r", mode="fit", error=error)
    notify("resources_changed", resources=None, origin="nobody listens to it")
    flush_listeners()
    sender.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_parents_listeners_hear_what_happens_in_a_child(method: str):
    heard: list[Any] = []
    inline = Quick()

    class Parent:
        @hookimpl
        def algorithm_step(self, step: int, metrics: dict[str, float]) -> None:
            heard.append((os.getpid(), step, metrics))

        @hookimpl
        async def run_finished(self, error: BaseException | None) -> None:
            heard.append(str(error))

    name, other = add_listener(Parent()), add_listener(inline, inline=True)
    assert heard_events() == {"algorithm_step", "run_finished"}
    context: Any = multiprocessing.get_context(method)
    pipe = EventPipe(context)
    process = context.Process(target=_child, args=(pipe.sender,))
    process.start()
    pipe.start()
    process.join()
    pipe.join()
    remove_listener(name)
    remove_listener(other)
    assert heard == [(os.getpid(), 1, {"reward": 0.5}), "Unpicklable: no"]
    assert inline.heard == []
