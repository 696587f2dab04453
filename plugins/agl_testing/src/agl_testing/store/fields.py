"""Each field keeps its value and its type, whatever other field is updated."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from agl_core.errors import InvalidArgumentError
from agl_core.store import LightningStore
from agl_core.types import LLM, Attempt, AttemptedRollout, Checkpoint, Rollout, RolloutConfig
from agl_testing.samples import named_resources, span_of
from agl_testing.store.base import StoreTests, claim

__all__ = ["FieldTests"]

NUMBERS: dict[str, Any] = {
    "integer": 1,
    "whole": 1.0,
    "zero": 0,
    "float zero": 0.0,
    "negative": -2.0,
    "large": 2**53 + 1,
    "tiny": 5e-324,
    "huge": 1e308,
    "third": 1 / 3,
    "yes": True,
    "no": False,
    "nothing": None,
    "list": [1, 1.0, True, None, [0.0, 0]],
    "nested": {"1": 1.0, "deep": {"k": [2.0, 2]}},
}
"""JSON values that a careless store takes for each other."""


@dataclass
class Question:
    text: str


GIVEN_AND_KEPT: dict[str, tuple[Any, Any]] = {
    "number keys": ({1: "a", 2.5: {3: "b"}}, {"1": "a", "2.5": {"3": "b"}}),
    "other keys": ({True: 1, None: 2}, {"true": 1, "null": 2}),
    "tuple and set": ([(1, 2), {3}], [[1, 2], [3]]),
    "decimal and fraction": ([Decimal("0.5"), Fraction(1, 4)], [0.5, 0.25]),
    "dataclass": (Question("why"), {"text": "why"}),
    "date": (date(2026, 1, 2), "2026-01-02"),
    "not a number": ([float("nan"), float("inf"), 1.0], [None, None, 1.0]),
}
"""Python values, and the JSON values that a store makes of them."""


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"deep": value}
    return value


def typed(value: Any) -> Any:
    """Return a value with the type of each number, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [typed(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return (type(value).__name__, value)


def shape(record: Any) -> dict[str, Any]:
    return typed(record.model_dump(exclude={"attempt"}))


class FieldTests(StoreTests):
    """Updates of one field, and the types of numbers."""

    async def _rollout(self, store: LightningStore) -> Rollout:
        claimed = await claim(store, worker_id="w")
        await store.update_rollout(
            claimed.rollout_id,
            input={"q": NUMBERS},
            mode="val",
            resources_id="rs-1",
            config=RolloutConfig(timeout_seconds=900, max_attempts=3, retry_condition=["failed"]),
            metadata={"m": 1.0},
        )
        rollout = await store.get_rollout_by_id(claimed.rollout_id)
        assert rollout is not None
        return rollout

    @pytest.mark.parametrize(
        "change",
        [
            {"input": {"other": [1, 1.0]}},
            {"input": None},
            {"mode": "test"},
            {"mode": None},
            {"resources_id": "rs-2"},
            {"resources_id": None},
            {"config": RolloutConfig(unresponsive_seconds=700.0)},
            {"metadata": {"other": 2}},
            {"metadata": {}},
            {"status": "running"},
            {},
        ],
        ids=str,
    )
    async def test_an_update_of_a_rollout_keeps_its_other_fields(
        self, store: LightningStore, change: dict[str, Any]
    ):
        before = await self._rollout(store)
        changed = await store.update_rollout(before.rollout_id, **change)
        expected = shape(before.model_copy(update=change))
        assert shape(changed) == expected
        read = await store.get_rollout_by_id(before.rollout_id)
        assert shape(read) == expected
        (listed,) = await store.query_rollouts()
        assert shape(listed) == expected
        attempt = await store.get_latest_attempt(before.rollout_id)
        assert attempt is not None
        assert (attempt.worker_id, attempt.sequence_id) == ("w", 1)

    @pytest.mark.parametrize(
        "change",
        [
            {"worker_id": "other"},
            {"last_heartbeat_time": 1.0},
            {"metadata": {"other": 2}},
            {"metadata": None},
            {"status": "running"},
            {},
        ],
        ids=str,
    )
    async def test_an_update_of_an_attempt_keeps_its_other_fields(
        self, store: LightningStore, change: dict[str, Any]
    ):
        claimed = await claim(store, {"q": NUMBERS}, worker_id="w")
        ids = (claimed.rollout_id, claimed.attempt.attempt_id)
        before: Attempt = await store.update_attempt(
            *ids, metadata=NUMBERS, last_heartbeat_time=12345.0
        )
        assert typed(before.metadata) == typed(NUMBERS)
        changed = await store.update_attempt(*ids, **change)
        expected = shape(before.model_copy(update=change))
        if change.get("status") == "running":
            expected["last_heartbeat_time"] = typed(changed.last_heartbeat_time)
        assert shape(changed) == expected
        latest = await store.get_latest_attempt(ids[0])
        assert shape(latest) == expected
        (listed,) = await store.query_attempts(ids[0])
        assert shape(listed) == expected
        rollout = await store.get_rollout_by_id(ids[0])
        assert rollout is not None
        assert typed(rollout.input) == typed({"q": NUMBERS})

    async def test_an_attempt_moves_to_another_worker(self, store: LightningStore):
        claimed = await claim(store, worker_id="old")
        await store.update_attempt(claimed.rollout_id, "latest", worker_id="new")
        attempt = await store.get_latest_attempt(claimed.rollout_id)
        assert attempt is not None
        assert attempt.worker_id == "new"
        worker = await store.get_worker_by_id("new")
        assert worker is not None
        assert worker.status == "busy"
        assert worker.current_attempt_id == claimed.attempt.attempt_id

    async def test_a_heartbeat_keeps_what_claims_wrote(self, store: LightningStore):
        await store.dequeue_rollout("w")
        await claim(store, worker_id="w")
        before = await store.update_worker("w", {"old": 1})
        after = await store.update_worker("w", NUMBERS)
        assert typed(after.heartbeat_stats) == typed(NUMBERS)
        assert (after.last_heartbeat_time or 0) >= (before.last_heartbeat_time or 0) > 0
        kept = {"heartbeat_stats", "last_heartbeat_time"}
        assert after.model_dump(exclude=kept) == before.model_dump(exclude=kept)
        assert None not in (after.last_busy_time, after.last_idle_time, after.last_dequeue_time)
        read = await store.get_worker_by_id("w")
        assert read is not None
        assert read.model_dump(exclude=kept) == after.model_dump(exclude=kept)
        assert typed(read.heartbeat_stats) == typed(NUMBERS)
        assert read.last_heartbeat_time == pytest.approx(after.last_heartbeat_time, abs=1e-4)

    async def test_numbers_keep_their_types(self, store: LightningStore):
        rollout = await store.enqueue_rollout(NUMBERS, metadata=NUMBERS)
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        read = await store.get_rollout_by_id(rollout.rollout_id)
        (listed,) = await store.query_rollouts()
        for found in (rollout, claimed, read, listed):
            assert found is not None
            assert typed(found.input) == typed(NUMBERS)
            assert typed(found.metadata) == typed(NUMBERS)
        times = [claimed.start_time, claimed.attempt.start_time]
        assert [type(at) for at in times] == [float, float]

    @pytest.mark.parametrize("case", GIVEN_AND_KEPT)
    async def test_values_of_python_become_the_same_json_in_every_store(
        self, store: LightningStore, case: str
    ):
        given, kept = GIVEN_AND_KEPT[case]
        enqueued = await store.enqueue_rollout(given, metadata={"given": given})
        started = await store.start_rollout(given, metadata={"given": given})
        changed = await store.start_rollout("old")
        await store.update_rollout(changed.rollout_id, input=given, metadata={"given": given})
        for rollout in (enqueued, started, changed):
            read = await store.get_rollout_by_id(rollout.rollout_id)
            assert read is not None
            assert typed(read.input) == typed(kept)
            assert typed(read.metadata) == typed({"given": kept})
        assert typed(enqueued.input) == typed(started.input) == typed(kept)

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            ({1: "a", "1": "b"}, "same text"),
            ({(1, 2): "a"}, "has the key"),
            (nested(500), "nested"),
            (nested(5000), "nested"),
        ],
        ids=["keys of one text", "a tuple as key", "500 levels", "5000 levels"],
    )
    async def test_values_that_are_not_json_are_refused(
        self, store: LightningStore, bad: Any, said: str
    ):
        running = await store.start_rollout("x")
        for call in (
            store.enqueue_rollout(bad),
            store.start_rollout({"in": [bad]}),
            store.enqueue_rollout("x", metadata={"m": bad}),
            store.update_rollout(running.rollout_id, input=bad),
            store.update_attempt(running.rollout_id, "latest", metadata={"m": bad}),
            store.update_worker("w", {"m": bad}),
        ):
            with pytest.raises(InvalidArgumentError, match=said):
                await call
        assert (await store.query_rollouts()).total == 1

    async def test_128_levels_of_nesting_are_kept(self, store: LightningStore):
        deep = nested(128)
        await store.enqueue_rollout(deep, metadata={"m": nested(127)})
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert claimed.input == deep
        (listed,) = await store.query_rollouts()
        assert (listed.input, listed.metadata) == (deep, {"m": nested(127)})

    async def test_numbers_in_resources_keep_their_types(self, store: LightningStore):
        llm = LLM(endpoint="http://127.0.0.1:1/v1", model="m", sampling_parameters=NUMBERS)
        state = Checkpoint(state=NUMBERS, metrics={"reward": 1.0})
        added = await store.add_resources({"llm": llm, "state": state})
        read = await store.get_resources_by_id(added.resources_id)
        (listed,) = await store.query_resources()
        await store.add_resources({"llm": llm})
        latest = await store.get_latest_resources()
        for found in (added, read, latest, listed):
            assert found is not None
            values: Any = found.resources
            assert typed(values["llm"].sampling_parameters) == typed(NUMBERS)
            if found is latest:
                continue  # a snapshot with a checkpoint does not become the latest
            assert typed(values["state"].state) == typed(NUMBERS)
            assert typed(values["state"].metrics) == typed({"reward": 1.0})

    async def test_times_of_spans_are_exact(self, store: LightningStore):
        claimed = await claim(store)
        times = [0.0, 1.0, 1700000000.123456, 1e-6]
        for index, at in enumerate(times, start=1):
            span = span_of(claimed, index)
            await store.add_span(span.model_copy(update={"start_time": at, "end_time": at}))
        read = await store.query_spans(claimed.rollout_id)
        assert [(span.start_time, span.end_time) for span in read] == [(at, at) for at in times]
        assert {type(span.start_time) for span in read} == {float}

    async def test_nothing_that_is_returned_is_shared(self, store: LightningStore):
        await store.update_worker("w", {"deep": [1]})
        await store.add_resources(named_resources("before"))
        queued = await store.enqueue_rollout({"deep": [1]}, metadata={"deep": [1]})
        claimed = await claim(store, {"deep": [1]}, worker_id="w")
        ids = (claimed.rollout_id, claimed.attempt.attempt_id)
        await store.update_attempt(*ids, status="succeeded", metadata={"deep": [1]})

        async def read() -> list[Any]:
            rollouts = list(await store.query_rollouts())
            return [
                *rollouts,
                *[rollout.attempt for rollout in rollouts if isinstance(rollout, AttemptedRollout)],
                await store.get_rollout_by_id(queued.rollout_id),
                await store.get_rollout_by_id(claimed.rollout_id),
                *await store.query_attempts(claimed.rollout_id),
                await store.get_latest_attempt(claimed.rollout_id),
                *await store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=0),
                *await store.query_workers(),
                await store.get_worker_by_id("w"),
                *await store.query_resources(),
                await store.get_latest_resources(),
                await store.update_rollout(queued.rollout_id),
                await store.update_attempt(*ids),
                queued,
                claimed,
            ]

        def spoil(record: Any) -> None:
            for name in ("input", "metadata", "heartbeat_stats"):
                value = getattr(record, name, None)
                if value and "deep" in value:
                    value["deep"].append("spoiled")
                    value["more"] = "spoiled"
            if hasattr(record, "resources"):
                record.resources["prompt"].template = "spoiled"
                record.resources["more"] = record.resources["prompt"]
            if hasattr(record, "status"):
                record.status = "failed"
            if hasattr(record, "config"):
                record.config.max_attempts = 99

        for record in await read():
            spoil(record)
        for record in await read():
            if record is not queued and record is not claimed:
                text = record.model_dump_json()
                assert "spoiled" not in text
                assert "failed" not in text
                assert '"max_attempts":99' not in text

    @pytest.mark.parametrize(
        "bad",
        [{"mode": "training"}, {"resources_id": 5}, {"metadata": [1]}, {"config": "fast"}],
        ids=str,
    )
    async def test_new_work_with_a_bad_field_is_refused(
        self, store: LightningStore, bad: dict[str, Any]
    ):
        with pytest.raises(InvalidArgumentError):
            await store.enqueue_rollout("x", **bad)
        with pytest.raises(InvalidArgumentError):
            await store.start_rollout("x", **bad)
        assert (await store.query_rollouts()).total == 0
        assert await store.dequeue_rollout() is None

    async def test_capabilities_agree_with_the_flags(self, store: LightningStore):
        found = store.capabilities
        for name in ("thread_safe", "events", "durable"):
            said = bool(found.get(name))
            assert said == (name in self.flags), f"{name} is {said}, and `flags` say otherwise"
        if found.get("zero_copy"):  # it is pickled to other processes then
            assert "processes" in self.flags, "a store that is zero_copy must claim `processes`"
