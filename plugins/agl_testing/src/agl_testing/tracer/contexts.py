"""Trace contexts: which spans belong to which trace, in tasks, threads and nested contexts."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agl_core import semconv
from agl_core.emitter import emit_message, operation
from agl_core.store import LightningStore
from agl_core.tracer import Tracer, get_active_tracer
from agl_core.types import Span
from agl_testing.suite import requires
from agl_testing.tracer.base import TracerTests, bodies

__all__ = ["ContextTests"]


def messages(spans: list[Span]) -> list[Span]:
    """Return the spans of messages; a tracer may write spans of its own."""
    return [span for span in spans if span.name == semconv.SPAN_MESSAGE]


class ContextTests(TracerTests):
    """A span belongs to the trace context it was started in."""

    async def test_it_is_the_active_tracer_within_its_context_only(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        seen: list[Tracer | None] = []
        with tracer.lifespan(tracer_store):
            assert get_active_tracer() is None
            await self.traced(tracer, tracer_store, lambda: seen.append(get_active_tracer()))
            assert get_active_tracer() is None
        assert seen == [tracer]

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
        texts = [span.attributes.get(semconv.MESSAGE_BODY) for span in spans]
        assert [text for text in texts if text is not None] == ["in"]

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
        assert bodies(inner[0]) == ["inner"]
        assert bodies(outer) == ["outer 1", "outer 2"]

    @requires("concurrent")
    async def test_tasks_do_not_mix(self, tracer: Tracer, tracer_store: LightningStore):
        async def one(index: int) -> None:
            async def work() -> None:
                for step in range(5):
                    emit_message(f"{index}-{step}")
                    await asyncio.sleep(0)

            _, spans = await self.traced(tracer, tracer_store, work)
            assert bodies(spans) == [f"{index}-{step}" for step in range(5)]

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
                assert bodies(spans) == [f"{index}-{step}" for step in range(20)]
            except BaseException as error:
                failures.append(error)

        with tracer.lifespan(tracer_store):
            threads = [threading.Thread(target=thread, args=(i,)) for i in range(6)]
            for each in threads:
                each.start()
            for each in threads:
                await asyncio.to_thread(each.join, 60)
            assert not any(each.is_alive() for each in threads), "a thread hangs"
        assert not failures, failures

    async def test_spans_of_gathered_tasks_belong_to_the_trace(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        async def tool(index: int) -> None:
            with operation(name=f"tool-{index}"):
                await asyncio.sleep(0)
                emit_message(str(index))
                await asyncio.sleep(0)

        async def work() -> None:
            with operation(name="fan-out"):
                await asyncio.gather(*(tool(index) for index in range(6)))
            emit_message("after")

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        by_id = {span.span_id: span for span in spans}
        names = {
            span.span_id: span.attributes[semconv.OPERATION_NAME]
            for span in spans
            if span.name == semconv.SPAN_OPERATION
        }
        parents: dict[Any, Any] = {}
        for span in spans:
            if span.name == semconv.SPAN_MESSAGE:
                parent = by_id.get(span.parent_id or "")
                parents[span.attributes[semconv.MESSAGE_BODY]] = (
                    parent and names.get(parent.span_id),
                    parent and names.get(parent.parent_id or ""),
                )
        expected = {str(index): (f"tool-{index}", "fan-out") for index in range(6)}
        after, _ = parents.pop("after")
        assert after is None
        assert parents == expected
        assert len(names) == 7
        assert len({span.trace_id for span in spans}) == 1

    async def test_spans_of_to_thread_belong_to_the_trace(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def tool(index: int) -> None:
            assert get_active_tracer() is tracer
            emit_message(str(index))

        async def work() -> None:
            with operation(name="threads"):
                await asyncio.gather(*(asyncio.to_thread(tool, index) for index in range(4)))

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        (outer,) = [span for span in spans if span.name == semconv.SPAN_OPERATION]
        emitted = messages(spans)
        assert sorted(bodies(spans)) == ["0", "1", "2", "3"]
        assert {span.parent_id for span in emitted} == {outer.span_id}
        assert {span.trace_id for span in emitted} == {outer.trace_id}

    async def test_the_spans_of_an_attempt_have_one_trace_id(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        def work() -> None:
            emit_message("1")
            emit_message("2")

        with tracer.lifespan(tracer_store):
            _, first = await self.traced(tracer, tracer_store, work)
            _, second = await self.traced(tracer, tracer_store, work)
        assert len({span.trace_id for span in first}) == 1
        assert {span.trace_id for span in first}.isdisjoint({span.trace_id for span in second})

    async def test_the_trace_so_far_can_be_read_inside(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        seen: list[list[Any]] = []

        def work() -> None:
            for index in range(3):
                emit_message(str(index))
                seen.append(bodies(tracer.get_last_trace()))

        with tracer.lifespan(tracer_store):
            await self.traced(tracer, tracer_store, work)
            assert bodies(tracer.get_last_trace()) == ["0", "1", "2"]
            await self.traced(tracer, tracer_store, lambda: emit_message("next"))
            assert bodies(tracer.get_last_trace()) == ["next"]
        assert seen == [["0"], ["0", "1"], ["0", "1", "2"]]

    async def test_a_span_outside_of_all_contexts_is_not_recorded(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        with tracer.lifespan(tracer_store):
            for _ in range(2):
                tracer.create_span("stray")
                with tracer.operation_context("stray"):
                    pass
                _, spans = await self.traced(tracer, tracer_store, lambda: emit_message("x"))
                assert bodies(tracer.get_last_trace()) == bodies(spans) == ["x"]
        assert "stray" not in [span.name for span in spans]

    @requires("threads")
    async def test_threads_of_the_agent_belong_to_its_trace(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        alive: list[threading.Thread] = []

        def tool(name: str) -> None:
            assert get_active_tracer() is tracer
            emit_message(name)

        def work() -> None:
            with operation(name="threads"):
                thread = threading.Thread(target=tool, args=("thread",))
                thread.start()
                alive.append(thread)
                thread.join()
                pool.submit(tool, "pool").result()
                emit_message("after")

        with ThreadPoolExecutor(1) as pool, tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
            # A thread of a pool outlives the trace in which it was started.
            _, later = await self.traced(
                tracer, tracer_store, lambda: pool.submit(emit_message, "later").result()
            )
            with pytest.raises(RuntimeError):
                pool.submit(emit_message, "outside").result()
        (outer,) = [span for span in spans if span.name == semconv.SPAN_OPERATION]
        assert bodies(spans) == ["thread", "pool", "after"]
        emitted = messages(spans)
        assert {span.parent_id for span in emitted} == {outer.span_id}
        assert bodies(later) == ["later"]
        assert "run" not in vars(alive[0]), "a reference cycle keeps the thread alive"

    async def test_spans_in_memory_are_numbered(self, tracer: Tracer):
        with tracer.lifespan():
            async with tracer.trace_context():
                for index in range(3):
                    emit_message(str(index))
                inside = tracer.get_last_trace()
            after = tracer.get_last_trace()
        for spans in (inside, after):
            assert bodies(spans) == ["0", "1", "2"]
            first, *others = (span.sequence_id for span in messages(spans))
            assert first >= 0
            assert others == [first + 1, first + 2]
        assert len({(span.rollout_id, span.attempt_id) for span in after}) == 1

    async def test_provisional_numbers_follow_the_order(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        numbers: list[list[int]] = []

        def work() -> None:
            for index in range(3):
                emit_message(str(index))
            numbers.append([span.sequence_id for span in messages(tracer.get_last_trace())])

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        assert numbers == [[span.sequence_id for span in messages(spans)]]
        first, *others = numbers[0]
        assert first >= 1
        assert others == [first + 1, first + 2]

    async def test_another_task_reads_the_last_trace(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        with tracer.lifespan(tracer_store):
            for text in ("first", "second"):
                await asyncio.create_task(
                    self.traced(tracer, tracer_store, lambda text=text: emit_message(text))
                )
                assert bodies(tracer.get_last_trace()) == [text]

    async def test_what_ends_after_the_context_is_not_recorded(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        step = operation(name="late")

        def work() -> None:
            step.__enter__()
            emit_message("inside")

        with tracer.lifespan(tracer_store):
            rollout, spans = await self.traced(tracer, tracer_store, work)
            step.__exit__(None, None, None)
            _, later = await self.traced(tracer, tracer_store, lambda: emit_message("next"))
            again = await tracer_store.query_spans(rollout.rollout_id)
        assert bodies(spans) == ["inside"]
        assert semconv.SPAN_OPERATION not in [span.name for span in spans]
        assert list(again) == spans
        assert bodies(later) == ["next"]

    async def test_the_deprecated_calls_record_a_trace(self, tracer: Tracer):
        async def work(value: str) -> str:
            emit_message(value)
            return value * 2

        def plain(value: str) -> str:
            emit_message(value)
            return value * 3

        with tracer.lifespan():
            with pytest.deprecated_call():
                assert await tracer.trace_run_async(work, "a") == "aa"
            assert bodies(tracer.get_last_trace()) == ["a"]
            with pytest.deprecated_call():
                ran = await asyncio.to_thread(tracer.trace_run, plain, "b")
            assert ran == "bbb"
            assert bodies(tracer.get_last_trace()) in (["a"], ["b"])

    @requires("concurrent")
    async def test_a_task_reads_its_own_last_trace(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        closed = [asyncio.Event(), asyncio.Event()]

        async def one(index: int) -> list[Any]:
            if index:
                await closed[0].wait()
            await self.traced(tracer, tracer_store, lambda: emit_message(str(index)))
            closed[index].set()
            await closed[1].wait()
            return bodies(tracer.get_last_trace())

        with tracer.lifespan(tracer_store):
            assert await asyncio.gather(one(0), one(1)) == [["0"], ["1"]]

    async def test_a_task_that_outlives_its_context_records_nothing(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        left = asyncio.Event()
        background: list[asyncio.Task[None]] = []

        async def late() -> None:
            await left.wait()
            emit_message("late")
            with operation(name="late"):
                pass

        async def work() -> None:
            background.append(asyncio.create_task(late()))
            emit_message("inside")

        with tracer.lifespan(tracer_store):
            rollout, spans = await self.traced(tracer, tracer_store, work)
            left.set()
            await asyncio.gather(*background)
            again = await tracer_store.query_spans(rollout.rollout_id)
            assert bodies(tracer.get_last_trace()) == ["inside"]
        assert list(again) == spans
        assert bodies(spans) == ["inside"]
