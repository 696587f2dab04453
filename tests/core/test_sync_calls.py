from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from agl_core.execution import ThreadingEvent
from agl_core.main_thread import run_beside_main_thread
from agl_core.sync_calls import SyncCalls

variable: ContextVar[int] = ContextVar("variable", default=0)


@pytest.fixture
def calls() -> Any:
    calls = SyncCalls("test-calls")
    yield calls
    calls.close()
    for thread in _threads():  # the next test counts its own
        thread.join(30)


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "test-calls"]


async def test_value_error_and_context(calls: SyncCalls) -> None:
    variable.set(7)
    assert await calls.submit(lambda: variable.get() + 1) == (8, None)
    error = KeyboardInterrupt()

    def fail() -> None:
        raise error

    assert await calls.submit(fail) == (None, error)
    assert await calls.submit(lambda: variable.set(9) and None) == (None, None)
    assert variable.get() == 7, "the call has a copy of the context"


def test_a_call_that_is_cancelled_before_its_turn_in_the_main_thread_is_not_made() -> None:
    ran: list[str] = []

    async def submit() -> None:
        calls = SyncCalls("test-calls", in_main_thread=True)
        begun, end = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            end.wait(30)

        held = calls.submit(hold)
        waiting = [calls.submit(partial(ran.append, name)) for name in "abc"]
        last = calls.submit(partial(ran.append, "last"))
        await asyncio.to_thread(begun.wait, 30)
        for call in waiting:
            call.cancel()
        await asyncio.sleep(0)  # their callbacks run
        end.set()
        await asyncio.gather(held, last)

    run_beside_main_thread(lambda: asyncio.run(submit()), ThreadingEvent())
    assert ran == ["last"]


async def test_one_thread_is_used_again(calls: SyncCalls) -> None:
    idents = {(await calls.submit(threading.get_ident)).value for _ in range(50)}
    assert len(idents) == 1
    assert len(_threads()) == 1


async def test_as_many_threads_as_calls_at_once(calls: SyncCalls) -> None:
    barrier = threading.Barrier(3)
    futures = [calls.submit(lambda: barrier.wait(10)) for _ in range(3)]
    outcomes = await asyncio.gather(*futures)
    assert sorted(outcome.value for outcome in outcomes) == [0, 1, 2]
    assert len(_threads()) == 3


async def test_an_abandoned_call_does_not_block_the_next(calls: SyncCalls) -> None:
    release = threading.Event()
    hung = calls.submit(lambda: release.wait(20))
    hung.cancel()
    assert (await asyncio.wait_for(calls.submit(lambda: "next"), 5)).value == "next"
    release.set()
    assert (await asyncio.wait_for(calls.submit(lambda: "again"), 5)).value == "again"


async def test_an_abandoned_error_is_logged(
    calls: SyncCalls, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    def fail() -> None:
        release.wait(20)
        raise OSError("too late")

    with caplog.at_level("DEBUG", logger="agl_core.sync_calls"):
        calls.submit(fail).cancel()
        release.set()
        async with asyncio.timeout(5):
            while "too late" not in caplog.text:
                await asyncio.sleep(0.002)


async def test_close_ends_the_threads() -> None:
    calls = SyncCalls("test-calls")
    release = threading.Event()
    await calls.submit(lambda: None)
    busy = [calls.submit(lambda: release.wait(20)) for _ in range(2)]
    calls.close()
    calls.close()
    release.set()
    await asyncio.gather(*busy)
    async with asyncio.timeout(5):
        while _threads():
            await asyncio.sleep(0.002)


def test_a_call_that_outlives_its_loop(calls: SyncCalls, caplog: pytest.LogCaptureFixture) -> None:
    release, ended = threading.Event(), threading.Event()

    def work() -> None:
        release.wait(20)
        ended.set()

    async def start() -> None:
        calls.submit(work)

    with caplog.at_level("DEBUG", logger="agl_core.sync_calls"):
        asyncio.run(start())
        release.set()
        assert ended.wait(5)

        async def again() -> Any:
            return await calls.submit(lambda: "works")

        assert asyncio.run(again()).value == "works"


async def test_no_object_of_a_call_is_kept(calls: SyncCalls) -> None:
    class Big:
        pass

    big = Big()
    gone = weakref.ref(big)

    def work(held: Any = big) -> None: ...

    await calls.submit(work)
    del big, work
    async with asyncio.timeout(5):
        while gone() is not None:
            gc.collect()
            await asyncio.sleep(0.002)
