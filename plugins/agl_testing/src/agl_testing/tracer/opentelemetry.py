"""Tracers on OpenTelemetry: spans that the agent makes with OpenTelemetry itself."""

from __future__ import annotations

import threading
from typing import Any

from opentelemetry import context as otel_context, trace as otel_trace

from agl_core.emitter import emit_message
from agl_core.store import LightningStore
from agl_core.tracer import Tracer
from agl_store_memory import InMemoryLightningStore
from agl_testing.suite import requires
from agl_testing.tracer.base import TracerTests, bodies

__all__ = ["OpenTelemetryTests"]


class ObservingStore(InMemoryLightningStore):
    """A store that makes a span in each call, as an instrumented HTTP client does."""

    def __init__(self) -> None:
        super().__init__()
        self.suppressed: list[object] = []

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int | None:
        return None

    async def add_encoded_spans(self, spans: Any) -> Any:
        self.suppressed.append(otel_context.get_value("suppress_instrumentation"))
        with otel_trace.get_tracer("client").start_as_current_span("POST /spans"):
            return await super().add_encoded_spans(spans)


class OpenTelemetryTests(TracerTests):
    """The agent's own spans belong to its trace."""

    @requires("opentelemetry")
    async def test_spans_of_the_agents_own_are_recorded(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        rollout = await tracer_store.start_rollout("task")
        ids: dict[str, Any] = {"rollout_id": rollout.rollout_id}
        with tracer.lifespan(tracer_store):
            async with tracer.trace_context(
                attempt_id=rollout.attempt.attempt_id, **ids
            ) as otel_tracer:
                with otel_tracer.start_as_current_span("outer", attributes={"k": 1.0}) as outer:
                    outer.add_event("happened", {"n": 1})
                    with otel_trace.get_tracer("library").start_as_current_span("inner"):
                        emit_message("innermost")
        spans = {s.name: s for s in await tracer_store.query_spans(rollout.rollout_id)}
        message = next(s for name, s in spans.items() if name not in ("outer", "inner"))
        assert spans["outer"].parent_id is None
        assert spans["inner"].parent_id == spans["outer"].span_id
        assert message.parent_id == spans["inner"].span_id
        assert spans["outer"].attributes["k"] == 1.0
        assert [event.name for event in spans["outer"].events] == ["happened"]

    @requires("opentelemetry")
    async def test_a_span_follows_its_parent_without_the_trace(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        """A context that holds only a parent span is how frameworks carry a trace elsewhere."""

        def work() -> None:
            library = otel_trace.get_tracer("library")
            with library.start_as_current_span("parent") as parent:
                bare = otel_trace.set_span_in_context(parent, otel_context.Context())
                library.start_span("explicit", context=bare).end()

                def elsewhere() -> None:
                    otel_context.attach(otel_context.Context())
                    library.start_span("elsewhere", context=bare).end()
                    library.start_span("of nobody", context=otel_context.Context()).end()

                thread = threading.Thread(target=elsewhere)
                thread.start()
                thread.join()

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        named = {span.name: span for span in spans}
        assert set(named) == {"parent", "explicit", "elsewhere"}
        assert named["explicit"].parent_id == named["parent"].span_id
        assert named["elsewhere"].parent_id == named["parent"].span_id

    @requires("opentelemetry")
    async def test_a_span_around_the_runner_is_not_part_of_the_attempt(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        with tracer.lifespan(tracer_store):
            with otel_trace.get_tracer("service").start_as_current_span("around") as around:
                _, spans = await self.traced(tracer, tracer_store, lambda: emit_message("x"))
                assert otel_trace.get_current_span() is around
            await self.traced(tracer, tracer_store, lambda: emit_message("y"))
        (span,) = spans
        assert span.parent_id is None

    @requires("opentelemetry")
    async def test_the_calls_of_the_store_are_not_recorded(self, tracer: Tracer):
        store = ObservingStore()
        with tracer.lifespan(store):
            _, spans = await self.traced(tracer, store, lambda: emit_message("x"))

            async def flushing() -> None:
                emit_message("y")
                await tracer.flush()
                emit_message("z")

            _, more = await self.traced(tracer, store, flushing)
        assert bodies(spans) == ["x"]
        assert bodies(more) == ["y", "z"]
        assert len(spans) + len(more) == 3
        assert set(store.suppressed) == {True}
