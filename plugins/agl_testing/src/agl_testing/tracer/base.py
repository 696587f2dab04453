"""Base of the parts of the tracer suite: the fixtures, the flags, and helpers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from agl_core import semconv
from agl_core.store import EncodedSpan, LightningStore
from agl_core.tracer import Tracer
from agl_core.types import AttemptedRollout, Span
from agl_store_memory import InMemoryLightningStore
from agl_testing.suite import Suite

__all__ = ["TracerTests", "bodies"]


class RemoteStore(InMemoryLightningStore):
    """A store that needs time to number a span, as if it were behind a network."""

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int | None:
        return None

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        await asyncio.sleep(0.001)
        return await super().get_many_span_sequence_ids(rollout_attempt_ids)


class OneThreadStore(InMemoryLightningStore):
    """A store that only the thread in which a rollout has started may give its spans."""

    def __init__(self) -> None:
        super().__init__(thread_safe=False)
        self._threads: dict[str, int] = {}

    async def start_rollout(self, *args: Any, **kwargs: Any) -> AttemptedRollout:
        started = await super().start_rollout(*args, **kwargs)
        self._threads[started.rollout_id] = threading.get_ident()
        return started

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        here = threading.get_ident()
        if any(self._threads.get(span.rollout_id, here) != here for span in spans):
            raise RuntimeError("a store that is not thread-safe was called in another thread")
        return await super().add_encoded_spans(spans)


class TracerTests(Suite):
    """Base of the tracer suite's parts.

    The author supplies a fixture ``tracer``: a tracer that is not initialised yet, and that waits
    at most two seconds for a store that is down.
    """

    suite_name = "tracer"
    arrival_seconds: ClassVar[float] = 3.0
    """Longest wait for a span of an agent that still works. Lower it only for a tracer that sends
    nothing, which is expected to fail those tests."""
    FLAGS: ClassVar[dict[str, str]] = {
        "concurrent": "several trace contexts may be open at once, in tasks and in threads",
        "nested": "a trace context may be opened within another",
        "threads": "spans of threads and thread pools that an agent starts belong to its trace",
        "opentelemetry": "the context yields an OpenTelemetry tracer, whose spans it records",
    }

    @pytest.fixture
    def tracer(self) -> Tracer:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `tracer`")

    @pytest.fixture(params=["local", "remote", "one thread"])
    def tracer_store(self, request: pytest.FixtureRequest) -> LightningStore:
        """Return a store: one that numbers spans at once, one that cannot, one for one thread."""
        kinds = {"local": InMemoryLightningStore, "remote": RemoteStore}
        return kinds.get(request.param, OneThreadStore)()

    async def traced(
        self, tracer: Tracer, store: LightningStore, work: Callable[[], Any]
    ) -> tuple[AttemptedRollout, list[Span]]:
        """Run ``work`` in a trace context of a new rollout; return the stored spans."""
        rollout = await store.start_rollout("task")
        ids: dict[str, Any] = {
            "rollout_id": rollout.rollout_id,
            "attempt_id": rollout.attempt.attempt_id,
        }
        async with tracer.trace_context(name=rollout.rollout_id, **ids):
            result = work()
            if asyncio.iscoroutine(result):
                await result
        return rollout, list(await store.query_spans(rollout.rollout_id))


def bodies(spans: list[Span]) -> list[Any]:
    """Return the bodies of the messages among the spans."""
    found = (span.attributes.get(semconv.MESSAGE_BODY) for span in spans)
    return [body for body in found if body is not None]
