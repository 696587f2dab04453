"""Delivery: every span reaches the store, in order, or leaving the context raises."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from agl_core import semconv
from agl_core.emitter import emit_message, emit_reward, find_final_reward
from agl_core.errors import StoreUnavailableError
from agl_core.store import LightningStore
from agl_core.tracer import Tracer, get_active_tracer
from agl_store_memory import InMemoryLightningStore
from agl_testing.tracer.base import TracerTests, bodies

__all__ = ["DeliveryTests"]


class BrokenStore(InMemoryLightningStore):
    """A store that refuses every span."""

    async def add_encoded_spans(self, spans: Any) -> Any:
        raise ConnectionError("the store is down")


class HesitantStore(InMemoryLightningStore):
    """A store that refuses the first spans."""

    failures = 0

    async def add_encoded_spans(self, spans: Any) -> Any:
        if not self.failures:
            self.failures += 1
            raise StoreUnavailableError("the server restarts")
        return await super().add_encoded_spans(spans)


class SilentStore(InMemoryLightningStore):
    """A store that accepts spans and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()
        self.calls = 0
        self.cancelled = 0

    async def add_encoded_spans(self, spans: Any) -> Any:
        self.calls += 1
        self.called.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)  # a client closes its connection
            self.cancelled += 1
            raise


class DeliveryTests(TracerTests):
    """No span is lost silently."""

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

    async def test_a_number_that_is_drawn_later_is_higher(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        """A proxy numbers the model calls of the same attempt."""
        drawn: list[int] = []

        async def work() -> None:
            (rollout,) = await tracer_store.query_rollouts()
            attempt = await tracer_store.get_latest_attempt(rollout.rollout_id)
            assert attempt is not None
            ids = (rollout.rollout_id, attempt.attempt_id)
            emit_message("before")
            number = tracer_store.draw_span_sequence_id(*ids)
            if number is None:  # such a store numbers spans only when they are stored
                await tracer.flush()
                number = await tracer_store.get_next_span_sequence_id(*ids)
            drawn.append(number)
            emit_message("after")

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        before, after = (span for span in spans if span.name == semconv.SPAN_MESSAGE)
        assert before.sequence_id < drawn[0] < after.sequence_id

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

    async def test_closing_the_context_reports_a_store_that_is_down(self, tracer: Tracer):
        store = BrokenStore()
        with tracer.lifespan(store):
            with pytest.raises((ConnectionError, RuntimeError)):
                await self.traced(tracer, store, lambda: emit_message("lost"))
            assert get_active_tracer() is None

    async def test_hundreds_of_spans_arrive_whole_and_in_order(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        async def work() -> None:
            for index in range(700):
                emit_message(str(index))
                if index % 50 == 0:
                    await asyncio.sleep(0)

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
            assert bodies(tracer.get_last_trace()) == [str(index) for index in range(700)]
        assert bodies(spans) == [str(index) for index in range(700)]
        numbers = [span.sequence_id for span in spans]
        assert numbers == sorted(set(numbers))

    async def test_flushed_spans_are_in_the_store(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        seen: list[list[Any]] = []

        async def work() -> None:
            for index in range(3):
                emit_message(str(index))
                await tracer.flush()
                (rollout,) = await tracer_store.query_rollouts()
                seen.append(bodies(list(await tracer_store.query_spans(rollout.rollout_id))))

        with tracer.lifespan(tracer_store):
            await tracer.flush()  # nothing to do outside of a trace context
            await self.traced(tracer, tracer_store, work)
        assert seen == [["0"], ["0", "1"], ["0", "1", "2"]], (
            "flush returned before the spans were in the store; a tracer that sends later than a "
            "span ends overrides it"
        )

    async def test_spans_arrive_while_the_agent_works(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        async def arrived() -> list[Any]:
            (rollout,) = await tracer_store.query_rollouts()
            return bodies(list(await tracer_store.query_spans(rollout.rollout_id)))

        async def work() -> None:
            for number in (1, 2, 3):
                emit_message(str(number))
                deadline = time.monotonic() + self.arrival_seconds
                # The memory store has an event for it, but other stores have none.
                while len(await arrived()) < number:
                    assert time.monotonic() < deadline, (
                        f"a span is not in the store {self.arrival_seconds} s after its end; spans "
                        "must arrive while the agent works, not when its context closes"
                    )
                    await asyncio.sleep(0.01)

        with tracer.lifespan(tracer_store):
            await self.traced(tracer, tracer_store, work)

    async def test_a_store_that_fails_once_gets_the_spans_later(self, tracer: Tracer):
        store = HesitantStore()
        with tracer.lifespan(store):
            try:
                _, spans = await self.traced(tracer, store, lambda: emit_message("kept"))
            except StoreUnavailableError as error:
                pytest.fail(f"a store failed once, and its spans were not sent again: {error!r}")
        assert store.failures == 1
        assert bodies(spans) == ["kept"]

    async def test_a_store_that_never_answers_is_reported_in_time(self, tracer: Tracer):
        store = SilentStore()
        start = time.monotonic()

        async def work() -> None:
            emit_message("lost")
            await asyncio.to_thread(store.called.wait, self.arrival_seconds)

        with tracer.lifespan(store):
            with pytest.raises((ConnectionError, RuntimeError)):
                await self.traced(tracer, store, work)
            assert get_active_tracer() is None
        seconds = time.monotonic() - start
        assert seconds < 10, (
            f"it waited {seconds:.0f} s for a store that never answers: give the suite a tracer "
            "that waits at most two seconds"
        )
        assert store.calls == store.cancelled, "calls of the store outlive the tracer"

    async def test_a_refused_span_is_reported(self, tracer: Tracer, tracer_store: LightningStore):
        with tracer.lifespan(tracer_store):
            with pytest.raises(Exception, match=r".+") as raised:
                async with tracer.trace_context(rollout_id="ro-no", attempt_id="at-no"):
                    emit_message("of nobody")
            assert not isinstance(raised.value, AssertionError)
            assert get_active_tracer() is None
            _, spans = await self.traced(tracer, tracer_store, lambda: emit_message("next"))
        assert bodies(spans) == ["next"]

    async def test_a_cancelled_agent_keeps_its_spans(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        started = asyncio.Event()

        async def work() -> None:
            emit_message("before")
            started.set()
            await asyncio.Event().wait()

        with tracer.lifespan(tracer_store):
            running = asyncio.ensure_future(self.traced(tracer, tracer_store, work))
            await started.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            (rollout,) = await tracer_store.query_rollouts()
            spans = list(await tracer_store.query_spans(rollout.rollout_id))
        assert bodies(spans) == ["before"]

    async def test_an_agents_error_comes_before_a_lost_store(self, tracer: Tracer):
        store = BrokenStore()

        def work() -> None:
            emit_message("lost")
            raise ZeroDivisionError

        with tracer.lifespan(store), pytest.raises(ZeroDivisionError):
            await self.traced(tracer, store, work)
