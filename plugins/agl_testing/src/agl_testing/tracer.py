"""The conformance suite for tracers.

::

    class TestMyTracer(TracerSuite):
        @pytest.fixture
        def tracer(self):
            return MyTracer()
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from agl_core import semconv
from agl_core.emitter import emit_message, emit_reward, find_final_reward, operation
from agl_core.store import InMemoryLightningStore, LightningStore
from agl_core.tracer import Tracer, get_active_tracer
from agl_core.types import AttemptedRollout, Span, TraceStatus
from agl_testing.suite import Suite, requires

__all__ = ["TracerSuite"]


class BrokenStore(InMemoryLightningStore):
    """A store that refuses every span."""

    async def add_encoded_spans(self, spans: Any) -> Any:
        raise ConnectionError("the store is down")


class TracerSuite(Suite):
    """Tests the contract of tracers.

    The author supplies a fixture ``tracer``: a tracer that is not initialised yet, and that waits
    at most a second for a store that is down.
    """

    suite_name = "tracer"
    FLAGS: ClassVar[dict[str, str]] = {
        "concurrent": "several trace contexts may be open at once, in tasks and in threads",
        "nested": "a trace context may be opened within another",
    }

    @pytest.fixture
    def tracer(self) -> Tracer:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `tracer`")

    @pytest.fixture
    def tracer_store(self) -> LightningStore:
        return InMemoryLightningStore()

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

    async def test_it_can_be_pickled_before_use(self, tracer: Tracer):
        assert type(pickle.loads(pickle.dumps(tracer))) is type(tracer)

    async def test_it_is_the_active_tracer_within_its_context_only(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        seen: list[Tracer | None] = []
        with tracer.lifespan(tracer_store):
            assert get_active_tracer() is None
            await self.traced(tracer, tracer_store, lambda: seen.append(get_active_tracer()))
            assert get_active_tracer() is None
        assert seen == [tracer]

    async def test_spans_are_in_the_store_when_the_context_has_closed(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        with tracer.lifespan(tracer_store):
            rollout, spans = await self.traced(tracer, tracer_store, lambda: emit_reward(0.5))
        rewards = [span for span in spans if span.name == semconv.SPAN_ANNOTATION]
        assert [find_final_reward([span]) for span in rewards] == [0.5]
        assert {span.attempt_id for span in spans} == {rollout.attempt.attempt_id}
        assert {span.span_id for span in tracer.get_last_trace()} >= {s.span_id for s in rewards}

    async def test_sequence_ids_follow_the_order_of_what_happened(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def work() -> None:
            for index in range(20):
                emit_message(str(index))

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        messages = [span for span in spans if span.name == semconv.SPAN_MESSAGE]
        numbers = [span.sequence_id for span in messages]
        assert [span.attributes[semconv.MESSAGE_BODY] for span in messages] == [
            str(index) for index in range(20)
        ]
        assert numbers == sorted(set(numbers))
        assert min(numbers) >= 1

    async def test_an_operation_is_the_parent_of_what_happens_in_it(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def work() -> None:
            with operation(name="outer"):
                emit_message("inner")

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        (outer,) = [span for span in spans if span.name == semconv.SPAN_OPERATION]
        (inner,) = [span for span in spans if span.name == semconv.SPAN_MESSAGE]
        assert inner.parent_id == outer.span_id
        assert inner.trace_id == outer.trace_id
        assert outer.attributes[semconv.OPERATION_NAME] == "outer"
        assert (outer.start_time or 0) <= (inner.start_time or 0) <= (outer.end_time or 0)

    async def test_an_operation_records_the_error_that_leaves_it(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def work() -> None:
            with pytest.raises(KeyError), operation(name="failing"):
                raise KeyError("gone")

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        (failed,) = [span for span in spans if span.name == semconv.SPAN_OPERATION]
        assert failed.status.status_code == "ERROR"
        assert "gone" in (failed.status.description or "")

    async def test_a_created_span_returns_what_it_recorded(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        made: list[Any] = []

        def work() -> None:
            status = TraceStatus(status_code="ERROR", description="no")
            made.append(tracer.create_span("made", {"k": [1, 2], "t": "x"}, status=status))

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        (span,) = [span for span in spans if span.name == "made"]
        assert made[0].name == "made"
        assert made[0].attributes["k"] == span.attributes["k"] == [1, 2]
        assert span.status.status_code == made[0].status.status_code == "ERROR"

    async def test_without_ids_spans_stay_in_memory(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        with tracer.lifespan():
            async with tracer.trace_context():
                emit_message("local")
            assert semconv.SPAN_MESSAGE in [span.name for span in tracer.get_last_trace()]
        assert (await tracer_store.statistics()).get("total_spans") == 0

    async def test_one_id_without_the_other_is_refused(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        with tracer.lifespan(tracer_store):
            halves: list[dict[str, Any]] = [{"rollout_id": "r"}, {"attempt_id": "a"}]
            for ids in halves:
                with pytest.raises(ValueError):  # noqa: PT011 -- the message is the tracer's choice
                    async with tracer.trace_context(**ids):
                        pytest.fail("the context opened")

    async def test_an_error_of_the_agent_passes_through_and_its_spans_are_kept(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        rollout = await tracer_store.start_rollout("task")
        ids: dict[str, Any] = {
            "rollout_id": rollout.rollout_id,
            "attempt_id": rollout.attempt.attempt_id,
        }

        async def fail() -> None:
            async with tracer.trace_context(**ids):
                emit_message("before")
                raise ZeroDivisionError

        with tracer.lifespan(tracer_store):
            with pytest.raises(ZeroDivisionError):
                await fail()
            assert get_active_tracer() is None
        names = [span.name for span in await tracer_store.query_spans(rollout.rollout_id)]
        assert semconv.SPAN_MESSAGE in names

    async def test_work_after_the_context_is_not_recorded(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        with tracer.lifespan(tracer_store):
            rollout, _ = await self.traced(tracer, tracer_store, lambda: emit_message("in"))
            with pytest.raises(RuntimeError):
                emit_message("after")
            async with tracer.trace_context():
                emit_message("elsewhere")
        spans = await tracer_store.query_spans(rollout.rollout_id)
        bodies = [span.attributes.get(semconv.MESSAGE_BODY) for span in spans]
        assert [body for body in bodies if body is not None] == ["in"]

    async def test_closing_the_context_reports_a_store_that_is_down(self, tracer: Tracer):
        store = BrokenStore()
        with tracer.lifespan(store):
            with pytest.raises((ConnectionError, RuntimeError)):
                await self.traced(tracer, store, lambda: emit_message("lost"))
            assert get_active_tracer() is None

    async def test_it_can_be_used_again_after_teardown(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        for _ in range(2):
            with tracer.lifespan(tracer_store):
                _, spans = await self.traced(tracer, tracer_store, lambda: emit_message("x"))
            assert [s.name for s in spans].count(semconv.SPAN_MESSAGE) == 1

    @requires("nested")
    async def test_a_nested_context_keeps_its_own(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        inner: list[list[Span]] = []

        async def work() -> None:
            emit_message("outer 1")
            _, spans = await self.traced(tracer, tracer_store, lambda: emit_message("inner"))
            inner.append(spans)
            emit_message("outer 2")

        with tracer.lifespan(tracer_store):
            _, outer = await self.traced(tracer, tracer_store, work)
        assert _bodies(inner[0]) == ["inner"]
        assert _bodies(outer) == ["outer 1", "outer 2"]

    @requires("concurrent")
    async def test_tasks_do_not_mix(self, tracer: Tracer, tracer_store: LightningStore):
        async def one(index: int) -> None:
            async def work() -> None:
                for step in range(5):
                    emit_message(f"{index}-{step}")
                    await asyncio.sleep(0)

            _, spans = await self.traced(tracer, tracer_store, work)
            assert _bodies(spans) == [f"{index}-{step}" for step in range(5)]

        with tracer.lifespan(tracer_store):
            await asyncio.gather(*(one(index) for index in range(10)))

    @requires("concurrent")
    async def test_threads_do_not_mix(self, tracer: Tracer, tracer_store: LightningStore):
        failures: list[BaseException] = []

        def thread(index: int) -> None:
            def work() -> None:
                for step in range(20):
                    emit_message(f"{index}-{step}")

            try:
                _, spans = asyncio.run(self.traced(tracer, tracer_store, work))
                assert _bodies(spans) == [f"{index}-{step}" for step in range(20)]
            except BaseException as error:
                failures.append(error)

        with tracer.lifespan(tracer_store):
            threads = [threading.Thread(target=thread, args=(i,)) for i in range(6)]
            for each in threads:
                each.start()
            for each in threads:
                await asyncio.to_thread(each.join, 60)
        assert not failures, failures


def _bodies(spans: list[Span]) -> list[Any]:
    bodies = (span.attributes.get(semconv.MESSAGE_BODY) for span in spans)
    return [body for body in bodies if body is not None]
