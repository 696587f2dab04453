from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from agl_core.errors import StoreUnavailableError
from agl_core.store import LightningStoreCapabilities
from agl_core.types import AttemptedRollout, Span
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer


class FlakyStore(InMemoryLightningStore):
    """A memory store that accepts spans only while ``up`` is set, and records their batches."""

    def __init__(self, *, thread_safe: bool = True) -> None:
        super().__init__()
        self.up = threading.Event()
        self.up.set()
        self.error: Callable[[], Exception] = lambda: StoreUnavailableError("the store is down")
        self.hang = False
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()
        self.arrived = threading.Condition()
        self._thread_safe = thread_safe

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**super().capabilities, "thread_safe": self._thread_safe}

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        if not self.up.is_set():
            if self.hang:
                await asyncio.Event().wait()
            raise self.error()
        stored = await super().add_many_spans(spans)
        with self.arrived:
            self.batches.append([span.name for span in spans])
            self.threads.add(threading.current_thread().name)
            self.arrived.notify_all()
        return stored

    def wait_for_spans(self, count: int, timeout: float = 10.0) -> None:
        with self.arrived:
            assert self.arrived.wait_for(
                lambda: sum(map(len, self.batches)) >= count, timeout=timeout
            ), f"only {self.batches} arrived"


class Desk:
    """A store, an initialised tracer that uses it, and rollouts to trace."""

    def __init__(self, store: FlakyStore, tracer: OtelTracer) -> None:
        self.store = store
        self.tracer = tracer

    async def rollout(self) -> AttemptedRollout:
        return await self.store.start_rollout("task")

    def trace(self, rollout: AttemptedRollout) -> Any:
        return self.tracer.trace_context(
            rollout.rollout_id,
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
        )

    async def stored(self, rollout: AttemptedRollout) -> list[Span]:
        return list(await self.store.query_spans(rollout.rollout_id))

    async def names(self, rollout: AttemptedRollout) -> list[str]:
        return [span.name for span in await self.stored(rollout)]


@pytest.fixture
def flaky_store() -> type[FlakyStore]:
    return FlakyStore


@pytest.fixture
def make_desk() -> Iterator[Callable[..., Desk]]:
    from contextlib import ExitStack

    with ExitStack() as stack:

        def make(store: FlakyStore | None = None, **options: Any) -> Desk:
            desk = Desk(store or FlakyStore(), OtelTracer(**options))
            stack.enter_context(desk.tracer.lifespan(desk.store))
            return desk

        yield make


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    return make_desk()
