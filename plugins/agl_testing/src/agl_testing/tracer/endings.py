"""How agents end, and what a tracer keeps: every error, every span, every character."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from agl_core import semconv
from agl_core.emitter import emit_message, emit_reward, find_final_reward, operation
from agl_core.store import LightningStore
from agl_core.tracer import Tracer, get_active_tracer
from agl_store_memory import InMemoryLightningStore
from agl_testing.tracer.base import TracerTests, bodies

__all__ = ["EndingTests"]

MANY = 2000
"""Spans that are still queued when the agent ends."""
WIDE = 1000
"""Attributes of one span; OpenTelemetry's own limit is 128, unless it is raised."""
LARGE = "snow \u2603 " * 100_000

ENDINGS: list[BaseException] = [
    SystemExit(3),
    KeyboardInterrupt("stop"),
    TimeoutError("the model took too long"),
    ConnectionError("the tool is away"),
    RuntimeError("the agent's own"),
    StopAsyncIteration("no more"),
]
"""What agents end with, and what a careless tracer takes for its own."""


class EndingTests(TracerTests):
    """Whatever ends an agent leaves its trace context as it was, and nothing is cut."""

    @pytest.mark.parametrize("ending", ENDINGS, ids=lambda error: type(error).__name__)
    async def test_what_ends_an_agent_passes_through(
        self, tracer: Tracer, tracer_store: LightningStore, ending: BaseException
    ):
        rollout = await tracer_store.start_rollout("task")
        ids: dict[str, Any] = {
            "rollout_id": rollout.rollout_id,
            "attempt_id": rollout.attempt.attempt_id,
        }
        seen: list[BaseException] = []
        with tracer.lifespan(tracer_store):
            try:
                async with tracer.trace_context(**ids):
                    emit_message("before")
                    raise ending
            except BaseException as error:
                # `async with` wraps StopAsyncIteration of a generator; the cause is the agent's.
                seen += [error, error.__cause__ or error]
            assert get_active_tracer() is None
        assert ending in seen, f"the agent ended with {ending!r}, its caller saw {seen}"
        spans = list(await tracer_store.query_spans(rollout.rollout_id))
        assert bodies(spans) == ["before"]

    @pytest.mark.parametrize("ending", ENDINGS[:4], ids=lambda error: type(error).__name__)
    async def test_what_ends_an_operation_passes_through(
        self, tracer: Tracer, tracer_store: LightningStore, ending: BaseException
    ):
        seen: list[BaseException] = []

        def work() -> None:
            for failing in (operation(name="failing"), tracer.operation_context("own")):
                try:
                    with failing:
                        raise ending
                except BaseException as error:
                    seen.append(error)

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        assert seen == [ending, ending]
        # A tracer may add spans of its own, such as one for the session.
        assert {semconv.SPAN_OPERATION, "own"} <= {span.name for span in spans}

    async def test_thousands_of_spans_arrive(self, tracer: Tracer):
        store = InMemoryLightningStore()

        def work() -> None:
            for index in range(MANY):
                emit_message(str(index))

        with tracer.lifespan(store):
            _, spans = await self.traced(tracer, store, work)
        assert bodies(spans) == [str(index) for index in range(MANY)]

    async def test_a_large_text_arrives_whole(self, tracer: Tracer, tracer_store: LightningStore):
        def work() -> None:
            emit_message(LARGE)
            tracer.create_span("made", {"text": LARGE})

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        (body,) = bodies(spans)
        (made,) = [span for span in spans if span.name == "made"]
        assert len(body) == len(str(made.attributes["text"])) == len(LARGE)

    async def test_many_attributes_and_a_long_name_arrive_whole(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        """A call with a long conversation has an attribute for each part of each message."""
        many: dict[str, Any] = {f"gen_ai.prompt.{i}.content": f"text {i}" for i in range(WIDE)}
        name = "step " * 100

        def work() -> None:
            tracer.create_span(name, many)
            with tracer.operation_context(f"{name}2", many):
                pass

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        found = {span.name: span.attributes for span in spans}
        for made in (name, f"{name}2"):
            assert made in found, "a long name is cut"
            assert {key: found[made].get(key) for key in many} == many

    async def test_a_trace_without_spans_is_not_the_one_before(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        with tracer.lifespan(tracer_store):
            await self.traced(tracer, tracer_store, lambda: emit_message("of the first"))
            assert bodies(tracer.get_last_trace()) == ["of the first"]
            await self.traced(tracer, tracer_store, lambda: None)
            assert bodies(tracer.get_last_trace()) == []

    async def test_a_reward_of_zero_arrives(self, tracer: Tracer, tracer_store: LightningStore):
        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, lambda: emit_reward(0.0))
        assert find_final_reward(spans) == 0.0

    async def test_attributes_of_the_caller_are_left_alone(
        self, tracer: Tracer, tracer_store: LightningStore
    ):
        given: dict[str, Any] = {"ids": [3, 1, 2], "text": "t"}
        before = copy.deepcopy(given)

        def work() -> None:
            tracer.create_span("made", given)
            with tracer.operation_context("operation", given) as recorder:
                recorder.record_attributes({"later": 1})

        with tracer.lifespan(tracer_store):
            _, spans = await self.traced(tracer, tracer_store, work)
        assert given == before
        kept = [span for span in spans if span.name in ("made", "operation")]
        assert len(kept) == 2
        assert all(list(span.attributes["ids"]) == [3, 1, 2] for span in kept)  # pyright: ignore[reportArgumentType]
