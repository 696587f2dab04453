from __future__ import annotations

import asyncio
import threading

import pytest

from agl_core.tracer import clear_active_tracer, get_active_tracer, set_active_tracer
from agl_core.tracer._active import activate
from agl_tracer_dummy import DummyTracer


@pytest.fixture(autouse=True)
def no_active_tracer():
    clear_active_tracer()
    yield
    clear_active_tracer()


def test_setting_twice_is_refused_until_cleared():
    first, second = DummyTracer(), DummyTracer()
    assert get_active_tracer() is None
    set_active_tracer(first)
    with pytest.raises(ValueError, match="clear_active_tracer"):
        set_active_tracer(second)
    assert get_active_tracer() is first
    clear_active_tracer()
    clear_active_tracer()
    set_active_tracer(second)
    assert get_active_tracer() is second


def test_activation_nests_and_restores():
    outer, inner = DummyTracer(), DummyTracer()
    with activate(outer):
        with pytest.raises(KeyError), activate(inner):
            raise KeyError(get_active_tracer() is inner)
        assert get_active_tracer() is outer
    assert get_active_tracer() is None


async def test_each_task_has_its_own():
    async def work(tracer: DummyTracer) -> None:
        set_active_tracer(tracer)
        await asyncio.sleep(0)
        assert get_active_tracer() is tracer

    await asyncio.gather(*(work(DummyTracer()) for _ in range(10)))
    assert get_active_tracer() is None


def test_each_thread_has_its_own():
    set_active_tracer(DummyTracer())
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(get_active_tracer()))
    thread.start()
    thread.join()
    assert seen == [None]
