"""One attempt of any work, and the spans that a tracer makes of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from agl_core.store import InMemoryLightningStore
from agl_core.tracer import Tracer
from agl_core.types import Span

__all__ = ["spans_of"]


async def spans_of(tracer: Tracer, work: Callable[[], Any]) -> list[Span]:
    """Run work, or what it returns to be awaited, as an attempt; return its spans."""
    store = InMemoryLightningStore()
    with tracer.lifespan(store):
        rollout = await store.start_rollout("task")
        attempt_id = rollout.attempt.attempt_id
        async with tracer.trace_context(
            "trial", rollout_id=rollout.rollout_id, attempt_id=attempt_id
        ):
            result = work()
            if inspect.isawaitable(result):
                await result
    return list(await store.query_spans(rollout.rollout_id))
