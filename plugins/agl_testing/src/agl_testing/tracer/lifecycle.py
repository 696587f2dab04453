"""The life cycle of tracers: pickled, initialised for workers, torn down, used again."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agl_core import semconv
from agl_core.emitter import emit_message
from agl_core.store import LightningStore
from agl_core.tracer import Tracer
from agl_testing.tracer.base import TracerTests, bodies

__all__ = ["LifecycleTests"]


class LifecycleTests(TracerTests):
    """A tracer is ready between its first and its last worker, and leaves nothing behind."""

    async def test_it_can_be_pickled_before_use(self, tracer: Tracer):
        assert type(pickle.loads(pickle.dumps(tracer))) is type(tracer)

    async def test_it_can_be_used_again_after_teardown(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        for _ in range(2):
            with tracer.lifespan(tracer_store):
                _, spans = await self.traced(tracer, tracer_store, lambda: emit_message("x"))
            assert [s.name for s in spans].count(semconv.SPAN_MESSAGE) == 1

    async def test_a_context_needs_an_initialised_tracer(self, tracer: Tracer):
        with pytest.raises(RuntimeError):
            async with tracer.trace_context():
                pytest.fail("the context opened")

    async def test_ids_need_a_store(self, tracer: Tracer):
        with tracer.lifespan(), pytest.raises(ValueError):  # noqa: PT011 -- the tracer's choice
            async with tracer.trace_context(rollout_id="r", attempt_id="a"):
                pytest.fail("the context opened")

    async def test_a_lifespan_has_one_worker(self, tracer: Tracer):
        with tracer.lifespan():
            assert tracer.worker_id == 0

    async def test_one_worker_may_leave_before_another(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        tracer.init()
        for worker_id in (0, 1):
            tracer.init_worker(worker_id, tracer_store)
        tracer.teardown_worker(0)
        _, spans = await self.traced(tracer, tracer_store, lambda: emit_message("still here"))
        tracer.teardown_worker(1)
        tracer.teardown()
        assert bodies(spans) == ["still here"]

    async def test_no_patch_and_no_thread_remains(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def patched() -> tuple[Any, ...]:
            return threading.Thread.start, threading.Thread.run, ThreadPoolExecutor.submit

        threads = set(threading.enumerate())
        tracer.init()
        for worker_id in (0, 1):
            tracer.init_worker(worker_id, tracer_store)
            assert tracer.worker_id == worker_id
        during = patched()
        tracer.teardown_worker(0)
        assert patched() == during
        await self.traced(tracer, tracer_store, lambda: emit_message("x"))
        tracer.teardown_worker(1)
        tracer.teardown()
        owners = [function.__module__ for function in patched()]
        assert owners == ["threading", "threading", "concurrent.futures.thread"]
        started = set(threading.enumerate()) - threads
        assert not [thread for thread in started if "asyncio" not in thread.name]
