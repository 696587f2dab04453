"""Memory thresholds, byte accounting, and the order of eviction."""

from __future__ import annotations

import logging
from typing import Any

import psutil
import pytest

from agl_core.errors import InvalidArgumentError, SpansEvictedError
from agl_core.store import encode_span
from agl_core.types import AttemptedRollout, Span
from agl_store_memory import InMemoryLightningStore
from agl_store_memory.eviction import MemoryBudget, memory_capacity


def budget(eviction: Any = None, safe: Any = None, capacity: int = 1000, estimator: Any = None):
    return MemoryBudget(eviction, safe, estimator, capacity)


@pytest.mark.parametrize(
    ("eviction", "safe", "expected"),
    [
        (None, None, (700, 560)),
        (0.5, 0.05, (500, 50)),
        (1.0, 0.0, (1000, 0)),
        (300, 200, (300, 200)),
        (1, 0, (1, 0)),
        (5000, None, (5000, 4000)),
    ],
)
def test_thresholds(eviction: Any, safe: Any, expected: tuple[int, int]):
    made = budget(eviction, safe)
    assert (made.eviction, made.safe) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((50, 100), "must be below"),
        ((50, 50), "must be below"),
        ((0, None), "at least 1 bytes"),
        ((0.0, None), "more than 0"),
        ((1.5, None), "at most 1"),
        ((float("nan"), None), "at most 1"),
        ((None, -1), "at least 0 bytes"),
        ((None, -0.1), "at least 0"),
        ((True, None), "a ratio"),
        (("1G", None), "a ratio"),
        ((None, None, 0), "capacity must be positive"),
        ((None, None, 10, 7), "span_size_estimator must be callable"),
    ],
)
def test_wrong_thresholds_are_refused(arguments: Any, words: str):
    with pytest.raises(InvalidArgumentError, match=words):
        budget(*arguments)


def test_the_capacity_is_the_machines(monkeypatch: pytest.MonkeyPatch, caplog: Any):
    assert memory_capacity() == psutil.virtual_memory().total

    def fails() -> Any:
        raise OSError("no /proc")

    monkeypatch.setattr(psutil, "virtual_memory", fails)
    with caplog.at_level(logging.WARNING):
        assert memory_capacity() == 8 * 1024**3
    assert "assuming 8 GiB" in caplog.text


def test_an_estimate_is_never_negative():
    span = encode_span(Span.from_attributes(attributes={"size": 5}))
    assert budget(estimator=lambda item: item.attributes["size"]).size_of(span) == 5
    assert budget(estimator=lambda item: -3).size_of(span) == 0
    assert budget().size_of(span) > len(span.payload)


def store_of(eviction: int, safe: int) -> InMemoryLightningStore:
    return InMemoryLightningStore(
        eviction_memory_threshold=eviction,
        safe_memory_threshold=safe,
        span_size_estimator=lambda span: 20,
    )


async def add(store: InMemoryLightningStore, to: AttemptedRollout, count: int = 1) -> None:
    ids = (to.rollout_id, to.attempt.attempt_id)
    for _ in range(count):
        span = Span.from_attributes(attributes={}, rollout_id=ids[0], attempt_id=ids[1])
        assert await store.add_span(span) is span


async def evicted(store: InMemoryLightningStore, rollout: AttemptedRollout) -> bool:
    try:
        await store.query_spans(rollout.rollout_id)
    except SpansEvictedError as error:
        return rollout.rollout_id in str(error) and isinstance(error, RuntimeError)
    return False


async def test_the_oldest_rollouts_are_evicted_first(caplog: pytest.LogCaptureFixture):
    store = store_of(50, 5)
    rollouts = [await store.start_rollout(i) for i in range(4)]
    with caplog.at_level(logging.WARNING, "agl_store_memory.backend"):
        for rollout in rollouts:
            await add(store, rollout)
    assert [await evicted(store, rollout) for rollout in rollouts] == [True, True, True, False]
    assert len(await store.query_spans(rollouts[3].rollout_id)) == 1
    statistics = await store.statistics()
    assert (statistics["total_spans"], statistics["total_span_bytes"]) == (1, 20)  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert len(caplog.records) == 1
    assert "Evicted 3 spans of 3 rollouts" in caplog.text


async def test_finished_rollouts_are_evicted_before_running_ones():
    store = store_of(100, 80)
    rollouts = [await store.start_rollout(i) for i in range(3)]
    await add(store, rollouts[0], 2)
    await add(store, rollouts[1], 2)
    await store.update_attempt(rollouts[1].rollout_id, "latest", status="succeeded")
    await add(store, rollouts[2], 2)
    assert [await evicted(store, rollout) for rollout in rollouts] == [False, True, False]


async def test_the_rollout_being_written_is_evicted_last():
    store = store_of(50, 0)
    rollout = await store.start_rollout(1)
    await add(store, rollout, 3)
    assert await evicted(store, rollout)
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    assert found.status == "running"


async def test_an_evicted_rollout_stays_evicted_and_its_new_spans_are_counted():
    store = store_of(50, 5)
    rollout = await store.start_rollout(1)
    await add(store, rollout, 4)
    assert await evicted(store, rollout)
    with pytest.raises(SpansEvictedError):
        await store.query_encoded_spans(rollout.rollout_id, "latest", limit=0)
    assert (await store.statistics()).get("total_spans") == 1
    empty = await store.query_spans("ro-unknown")
    assert (empty.total, list(empty)) == (0, [])


async def test_an_estimator_that_fails_stores_nothing():
    def fails(span: Span) -> int:
        raise ArithmeticError("no size")

    store = InMemoryLightningStore(span_size_estimator=fails)
    rollout = await store.start_rollout(1)
    with pytest.raises(ArithmeticError):
        await add(store, rollout)
    assert (await store.statistics()).get("total_spans") == 0
    assert await store.get_next_span_sequence_id(rollout.rollout_id, "x") == 1


async def test_the_numbers_of_lists_count():
    store = InMemoryLightningStore()
    made = await store.start_rollout("x")
    sizes: list[int] = []
    for number in range(2):
        span = Span.from_attributes(
            attributes={"logprobs": [-0.5 - i for i in range(1000 * number)]},
            rollout_id=made.rollout_id,
            attempt_id=made.attempt.attempt_id,
        )
        await store.add_span(span)
        sizes.append((await store.statistics()).get("total_span_bytes", 0))
    objects = 1000 * ((-0.5).__sizeof__() + 8)
    assert 0.5 * objects <= sizes[1] - 2 * sizes[0] <= objects
