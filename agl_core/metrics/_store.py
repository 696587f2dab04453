"""Measures a store: its calls, its queue and its workers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Final

from agl_core.metrics._active import Recorder, is_recording, record
from agl_core.metrics._base import Metric
from agl_core.status import worker_status
from agl_core.store import Interceptor, LightningStore, Method, Next

logger = logging.getLogger(__name__)

# Two names of the method, as in version 0.3, whose stores have inner steps.
_CALL: Final = ("method", "store_pubmeth", "status")
CALL_SECONDS: Final = Metric(
    "histogram", "agl.store.latency", "Time of calls.", _CALL, "s", count="agl.store.total"
)
QUEUE: Final = Metric("gauge", "agl.queue.length", "Rollouts that wait for a runner.")
WORKERS: Final = Metric("gauge", "agl.workers", "Workers that the store knows.", ("status",))
LOST: Final = Metric("gauge", "agl.workers.lost", "Silent workers whose attempt is still open.")
SAMPLE_SECONDS: Final = 10.0
"""Between two looks at the store's numbers: scrapers ask every 10 s or less often."""


class MeasureCalls(Interceptor):
    """Records the number and the duration of the calls of a store. Thread-safe."""

    def wrap(self, name: str, method: Method, next: Next) -> Method:
        succeeded = Recorder(CALL_SECONDS, name, name, "OK")

        # Not `around`: every call is measured, also those that take 1 us.
        async def call(*args: Any, **kwargs: Any) -> Any:
            started = perf_counter()
            try:
                result = await method(*args, **kwargs)
            except BaseException as error:
                record(CALL_SECONDS, perf_counter() - started, name, name, type(error).__name__)
                raise
            if (note := succeeded.record) is not None:
                note(perf_counter() - started)
            return result

        return call


@asynccontextmanager
async def sampled(store: LightningStore) -> AsyncGenerator[None]:
    """Record the length of the queue and the workers every 10 s, if a backend is active."""
    if not is_recording():
        yield
        return
    task = asyncio.create_task(_sample(store), name="agl-metrics")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _sample(store: LightningStore) -> None:
    while True:
        try:
            queued = await store.query_rollouts(status_in=["queuing", "requeuing"], limit=0)
            now = await store.now()
            known = (await store.query_workers()).items
            workers = Counter(worker_status(worker, now=now) for worker in known)
            lost = sum(
                worker.status == "busy" and worker_status(worker, now=now) == "unknown"
                for worker in known
            )
        except Exception as error:
            logger.warning("the queue could not be measured: %r", error)
        else:
            record(QUEUE, queued.total)
            for status in ("idle", "busy", "unknown"):
                record(WORKERS, workers[status], status)
            record(LOST, lost)
        await asyncio.sleep(SAMPLE_SECONDS)
