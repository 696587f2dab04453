from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from agl_core.emitter import emit_message, operation
from agl_core.tracer import get_active_tracer
from agl_tracer_otel.threads import traces_follow_threads


def in_thread(target) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


async def test_a_thread_belongs_to_the_trace_that_started_it(desk):
    rollout = await desk.rollout()

    class Worker(threading.Thread):
        def run(self) -> None:
            emit_message("from a subclass")

    async with desk.trace(rollout):
        with operation(name="outer"):
            in_thread(lambda: emit_message("from a thread"))
            worker = Worker()
            worker.start()
            worker.join()
    first, second, outer = await desk.stored(rollout)
    assert first.parent_id == second.parent_id == outer.span_id
    assert second.attributes["agentlightning.message.body"] == "from a subclass"


async def test_pooled_work_belongs_to_the_trace_that_submitted_it(desk):
    rollouts = [await desk.rollout() for _ in range(6)]
    with ThreadPoolExecutor(2) as pool:

        async def run(index: int) -> None:
            async with desk.trace(rollouts[index]):
                futures = [pool.submit(emit_message, f"{index}.{step}") for step in range(5)]
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(pool, emit_message, f"{index}.5")
                await asyncio.gather(*map(asyncio.wrap_future, futures))
                assert set(pool.map(lambda _: get_active_tracer(), range(3))) == {desk.tracer}

        await asyncio.gather(*map(run, range(6)))
        # The pool's threads were started within a trace; later work does not belong to that trace.
        assert pool.submit(get_active_tracer).result() is None
    for index, rollout in enumerate(rollouts):
        bodies = {s.attributes["agentlightning.message.body"] for s in await desk.stored(rollout)}
        assert bodies == {f"{index}.{step}" for step in range(6)}


async def test_results_and_errors_of_threads_are_unchanged(desk):
    def fail(value: int, *, by: int) -> int:
        return value // by

    async with desk.tracer.trace_context():
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(fail, 6, by=2).result() == 3
            with pytest.raises(ZeroDivisionError):
                pool.submit(fail, 1, by=0).result()


async def test_a_thread_is_not_kept_alive(desk):
    async with desk.tracer.trace_context():
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        gone = weakref.ref(thread)
        del thread
        gc.collect()
        assert gone() is None


def test_patches_are_counted_and_removed():
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit
    with traces_follow_threads():
        patched = threading.Thread.start
        assert patched is not start
        with traces_follow_threads():
            assert threading.Thread.start is patched
        assert threading.Thread.start is patched
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == (start, submit)


def test_a_patch_on_top_of_ours_stays_and_works():
    start = threading.Thread.start
    with traces_follow_threads():
        ours = threading.Thread.start
        calls: list[str] = []

        def theirs(self: threading.Thread) -> None:
            calls.append("theirs")
            ours(self)

        threading.Thread.start = theirs  # type: ignore[method-assign]
    try:
        assert threading.Thread.start is theirs
        in_thread(lambda: calls.append("ran"))
        assert calls == ["theirs", "ran"]
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


async def test_it_can_be_turned_off(make_desk):
    desk = make_desk(follow_threads=False)
    seen: list[object] = []
    async with desk.tracer.trace_context():
        in_thread(lambda: seen.append(get_active_tracer()))
    assert seen == [None]
