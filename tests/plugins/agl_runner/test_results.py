"""Every kind of value that an agent may return, and some that it may not."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider

from agl_core import semconv
from agl_core.emitter import emit_reward
from agl_core.errors import (
    AgentResultError,
    AglError,
    StoreDataError,
    StoreFullError,
)
from agl_core.types import Rollout, Span, SpanCoreFields, TraceStatus
from agl_runner import results
from agl_store_memory import InMemoryLightningStore

REWARD = f"{semconv.REWARD}.0.value"


async def _spans(bench: Any, rollout: Rollout) -> list[Span]:
    return list(await bench.store.query_spans(rollout.rollout_id))


@pytest.mark.parametrize("value", [0.5, -2.0, 0.0])
async def test_a_float_becomes_a_reward_span(bench: Any, value: float) -> None:
    runner = await bench.runner(lambda task: value)
    rollout = await runner.step({"q": 1})
    (span,) = await _spans(bench, rollout)
    assert rollout.status == "succeeded"
    assert span.name == semconv.SPAN_ANNOTATION
    assert span.attributes[f"{semconv.REWARD}.0.name"] == semconv.PRIMARY_REWARD
    assert span.attributes[REWARD] == value
    assert (span.rollout_id, span.sequence_id) == (rollout.rollout_id, 1)
    assert span.attempt_id == (await bench.attempt()).attempt_id


@pytest.mark.parametrize(("value", "stored"), [(True, 1.0), (False, 0.0), (3, 3.0)])
async def test_bools_and_ints_are_rewards_too(
    bench: Any, caplog: pytest.LogCaptureFixture, value: Any, stored: float
) -> None:
    runner = await bench.runner(lambda task: value)
    rollout = await runner.step({})
    (span,) = await _spans(bench, rollout)
    assert span.attributes[REWARD] == stored
    assert isinstance(span.attributes[REWARD], float)
    assert [r.levelname for r in caplog.records if repr(value) in r.getMessage()] == ["WARNING"]


class Tensor:
    """A tensor as PyTorch has it: a number only if it has one value."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __float__(self) -> float:
        if len(self.values) != 1:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
        return self.values[0]


@pytest.mark.parametrize(
    "value",
    [
        Decimal("0.5"),
        Fraction(1, 2),
        np.float32(0.5),
        np.array(0.5),
        Tensor(0.5),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_numbers_of_other_libraries_are_rewards(bench: Any, value: Any) -> None:
    runner = await bench.runner(lambda task: value)
    rollout = await runner.step({})
    assert rollout.status == "succeeded"
    (span,) = await _spans(bench, rollout)
    assert span.attributes[REWARD] == 0.5
    assert type(span.attributes[REWARD]) is float


@pytest.mark.parametrize("value", [np.bool_(True), np.int64(1)])
async def test_booleans_and_integers_of_numpy_are_rewards(bench: Any, value: Any) -> None:
    rollout = await (await bench.runner(lambda task: value)).step({})
    (span,) = await _spans(bench, rollout)
    assert span.attributes[REWARD] == 1.0


@pytest.mark.parametrize("value", [np.array([1.0, 2.0]), Tensor(1.0, 2.0)])
async def test_several_numbers_are_not_a_reward(bench: Any, value: Any) -> None:
    runner = await bench.runner(lambda task: value)
    with pytest.raises(AgentResultError, match="a reward must be one number, not this"):
        await runner.step({})
    assert (await bench.attempt()).status == "failed"


async def test_none_adds_no_span(bench: Any) -> None:
    runner = await bench.runner(lambda task: emit_reward(0.25) and None)
    rollout = await runner.step({})
    (span,) = await _spans(bench, rollout)
    assert span.attributes[REWARD] == 0.25


async def test_an_empty_list_warns_and_succeeds(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runner = await bench.runner(lambda task: [])
    rollout = await runner.step({})
    assert rollout.status == "succeeded"
    assert await _spans(bench, rollout) == []
    assert "empty list of spans" in caplog.text


async def test_a_list_of_core_fields_keeps_its_order(bench: Any) -> None:
    def agent(task: Any) -> list[SpanCoreFields]:
        return [emit_reward(float(i), propagate=False) for i in range(5)]

    rollout = await (await bench.runner(agent)).step({})
    spans = await _spans(bench, rollout)
    assert [span.attributes[REWARD] for span in spans] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [span.sequence_id for span in spans] == [1, 2, 3, 4, 5]


async def test_a_list_of_spans_is_stored_unchanged(bench: Any) -> None:
    made: list[Span] = []

    async def agent(task: Any) -> list[Span]:
        (rollout,) = await bench.store.query_rollouts()
        for i in (7, 3):
            span = Span.from_attributes(
                attributes={"n": i},
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
                sequence_id=i,
                name=f"own-{i}",
            )
            made.append(span)
        return made

    rollout = await (await bench.runner(agent)).step({})
    assert await _spans(bench, rollout) == made[::-1]


async def test_a_list_of_otel_spans_is_converted(bench: Any) -> None:
    def agent(task: Any) -> list[Any]:
        tracer = TracerProvider().get_tracer("elsewhere")
        spans = []
        for name in ("first", "second"):
            span = tracer.start_span(name, attributes={"name": name})
            span.end()
            spans.append(span)
        return spans

    rollout = await (await bench.runner(agent)).step({})
    spans = await _spans(bench, rollout)
    assert [(s.name, s.sequence_id, s.attributes["name"]) for s in spans] == [
        ("first", 1, "first"),
        ("second", 2, "second"),
    ]


async def test_spans_that_the_tracer_recorded_are_not_stored_twice(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from opentelemetry import trace

    def agent(task: Any) -> list[Any]:
        span = trace.get_tracer("mine").start_span("call")
        span.end()
        return [span]

    rollout = await (await bench.runner(agent)).step({})
    assert [span.name for span in await _spans(bench, rollout)] == ["call"]
    assert "1 of the 1 spans that the agent returned were recorded already" in caplog.text


@pytest.mark.parametrize(
    ("result", "builtin", "message"),
    [
        ({"reward": 1}, TypeError, "None, a number or a list of spans, not dict"),
        ("1.0", TypeError, "not str"),
        ((), TypeError, "not tuple"),
        (1 + 2j, TypeError, "not complex"),
        ([1.0], ValueError, "this one holds: float"),
        (
            [SpanCoreFields(name="x", status=TraceStatus(status_code="OK"), attributes={},
                            start_time=None, end_time=None), 1],
            ValueError,
            "SpanCoreFields, int|int, SpanCoreFields",
        ),
    ],
)  # fmt: skip
async def test_a_bad_result_fails_the_attempt(
    bench: Any, result: Any, builtin: type[Exception], message: str
) -> None:
    runner = await bench.runner(lambda task: result)
    with pytest.raises(builtin, match=message) as caught:
        await runner.step({})
    assert isinstance(caught.value, AgentResultError)
    attempt = await bench.attempt()
    assert attempt.status == "failed"
    assert attempt.metadata["error_type"] == "AgentResultError"
    assert await bench.statuses() == ["failed"]


class FullStore(InMemoryLightningStore):
    """A store that refuses the next writes of a result, those of ids and those of spans."""

    def __init__(self, error: AglError, times: int) -> None:
        super().__init__()
        self.error = error
        self.left = {"ids": times, "spans": times}

    def _refuse(self, what: str) -> None:
        if self.left[what]:
            self.left[what] -= 1
            raise self.error

    async def get_many_span_sequence_ids(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("ids")
        return await super().get_many_span_sequence_ids(*args, **kwargs)

    async def add_many_spans(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("spans")
        return await super().add_many_spans(*args, **kwargs)


async def test_a_result_waits_until_the_store_has_space(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "FIRST_RETRY", 0.01)
    bench.store = FullStore(StoreFullError("the disk is full"), times=2)
    runner = await bench.runner(lambda task: 0.5)
    rollout = await runner.step({})
    assert rollout.status == "succeeded"
    (span,) = await _spans(bench, rollout)
    assert span.attributes[REWARD] == 0.5


@pytest.mark.parametrize(
    ("error", "tries"), [(StoreFullError("the disk is full"), 2), (StoreDataError("damaged"), 1)]
)
async def test_a_result_does_not_wait_for_ever_or_for_what_no_repetition_mends(
    bench: Any, error: AglError, tries: int
) -> None:
    bench.store = FullStore(error, times=100)
    runner = await bench.runner(lambda task: 0.5, finish_timeout=0.25)
    with pytest.raises(type(error), match=str(error)):
        await runner.step({})
    assert bench.store.left["ids"] == 100 - tries  # at 0 and 0.1 s
    attempt = await bench.attempt()
    assert attempt.status == "failed"
