"""Behaviour of the memory store beyond the conformance suite."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from pydantic_core import PydanticSerializationError

from agl_core.errors import InvalidArgumentError, NotFoundError
from agl_core.store import EncodedSpan
from agl_core.types import (
    LLM,
    AttemptedRollout,
    EnqueueRolloutRequest,
    Event,
    OtelResource,
    ResourcesUpdate,
    RolloutConfig,
    Span,
    TraceStatus,
)
from agl_store_memory import InMemoryLightningStore


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore(scan_debounce_seconds=0)


def span_of(rollout: AttemptedRollout, sequence_id: int = 1, **fields: Any) -> Span:
    return Span.from_attributes(
        attributes={"k": "v"},
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=sequence_id,
        **fields,
    )


# -- values ----------------------------------------------------------------------------------------


async def test_nothing_is_shared_with_the_store(store: InMemoryLightningStore):
    task, metadata = {"a": [1, {"b": 2}]}, {"m": [1]}
    config = RolloutConfig(retry_condition=["failed"], max_attempts=2)
    request = EnqueueRolloutRequest(input=task, config=config, metadata=metadata)
    (made,) = await store.enqueue_many_rollouts([request])
    claimed = await store.dequeue_rollout("w")
    assert claimed is not None
    await store.update_attempt(made.rollout_id, "latest", metadata={"k": []})
    expected = await store.get_rollout_by_id(made.rollout_id)
    seen: list[Any] = [made, claimed, *await store.query_rollouts()]
    for holder in [*seen, EnqueueRolloutRequest(input=task, config=config, metadata=metadata)]:
        holder.input["a"][1]["b"] = 99
        holder.input["a"].append(3)
        holder.metadata["m"].append(2)
        holder.config.retry_condition.clear()
        holder.config.max_attempts = 7
        if isinstance(holder, AttemptedRollout):
            holder.attempt.status = "failed"
            (holder.attempt.metadata or {}).clear()
    stats: dict[str, Any] = {"cpu": [1]}
    worker = await store.update_worker("w", stats)
    stats["cpu"].append(2)
    assert worker.heartbeat_stats == {"cpu": [1]}
    (worker.heartbeat_stats or {}).clear()
    again = await store.get_worker_by_id("w")
    assert again is not None
    assert again.heartbeat_stats == {"cpu": [1]}
    assert await store.get_rollout_by_id(made.rollout_id) == expected


@pytest.mark.parametrize(
    "bad",
    [
        {"status": "done"},
        {"status": None},
        {"config": None},
        {"config": {"max_attempts": 0}},
        {"config": RolloutConfig.model_construct(max_attempts=0, retry_condition=[])},
        {"mode": "fit"},
        {"resources_id": 7},
        {"metadata": [1]},
    ],
)
async def test_a_bad_value_changes_no_rollout(store: InMemoryLightningStore, bad: Any):
    made = await store.enqueue_rollout("x")
    with pytest.raises(InvalidArgumentError) as caught:
        await store.update_rollout(made.rollout_id, **{"input": "changed", **bad})
    assert next(iter(bad)) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert await store.get_rollout_by_id(made.rollout_id) == made


@pytest.mark.parametrize(
    "bad",
    [
        {"status": "cancelled"},
        {"status": None},
        {"worker_id": None},
        {"worker_id": 3},
        {"last_heartbeat_time": None},
        {"last_heartbeat_time": True},
        {"last_heartbeat_time": "now"},
        {"metadata": "x"},
    ],
)
async def test_a_bad_value_changes_no_attempt(store: InMemoryLightningStore, bad: Any):
    made = await store.start_rollout("x")
    values = {"status": "failed", "metadata": {"a": 1}, **bad}
    with pytest.raises(InvalidArgumentError) as caught:
        await store.update_attempt(made.rollout_id, "latest", **values)
    assert next(iter(bad)) in str(caught.value)
    assert await store.get_rollout_by_id(made.rollout_id) == made


@pytest.mark.parametrize(
    "bad", [{"mode": "fit"}, {"resources_id": 1}, {"config": 5}, {"metadata": 5}]
)
async def test_a_bad_value_creates_nothing(store: InMemoryLightningStore, bad: Any):
    for create in (store.enqueue_rollout, store.start_rollout):
        with pytest.raises(InvalidArgumentError):
            await create("x", **bad)
    fields: Any = {"input": 1, "mode": None, "resources_id": None, "config": None, "metadata": None}
    good, wrong = [EnqueueRolloutRequest.model_construct(**fields) for _ in range(2)]
    for name, value in bad.items():
        setattr(wrong, name, value)
    with pytest.raises(InvalidArgumentError):
        await store.enqueue_many_rollouts([good, wrong])
    assert (await store.statistics()).get("total_rollouts") == 0


async def test_bad_workers_and_resources_are_refused(store: InMemoryLightningStore):
    with pytest.raises(TypeError, match="heartbeat_stats"):
        await store.update_worker("w", None)  # pyright: ignore[reportArgumentType]
    wrong: Any = (("",), (None,), ("w", 5))
    for arguments in wrong:
        with pytest.raises(InvalidArgumentError):
            await store.update_worker(*arguments)
    resources: Any = {"a": {"endpoint": "x"}}
    with pytest.raises(InvalidArgumentError, match=r"resources: resources\.a"):
        await store.add_resources(resources)
    statistics = await store.statistics()
    assert (statistics.get("total_workers"), statistics.get("total_resources")) == (0, 0)


async def test_resources_given_as_dicts_become_resources(store: InMemoryLightningStore):
    resources: Any = {"llm": {"resource_type": "llm", "endpoint": "http://x", "model": "m"}}
    made = await store.add_resources(resources)
    assert made.resources == {"llm": LLM(endpoint="http://x", model="m")}
    found = await store.get_resources_by_id(made.resources_id)
    assert isinstance(found, ResourcesUpdate)
    assert found == made
    assert found.resources["llm"] is not made.resources["llm"]
    assert [item.resources_id for item in await store.query_resources(sort_by="version")] == [
        made.resources_id
    ]


async def test_unknown_ids_raise_what_both_except_forms_catch(store: InMemoryLightningStore):
    made = await store.enqueue_rollout("x")
    for call in (
        store.update_rollout("ro-x", status="failed"),
        store.start_attempt("ro-x"),
        store.update_attempt("ro-x", "latest"),
        store.update_attempt(made.rollout_id, "latest"),
        store.update_attempt(made.rollout_id, "at-x"),
    ):
        with pytest.raises(ValueError, match="not found") as caught:
            await call
        assert isinstance(caught.value, NotFoundError)


# -- queries ---------------------------------------------------------------------------------------


async def test_all_queries_agree(store: InMemoryLightningStore):
    made = [await store.enqueue_rollout(number) for number in range(12)]
    for index in (1, 4, 6):
        await store.update_rollout(made[index].rollout_id, status="cancelled")
    ids = [item.rollout_id for item in made]
    part = ids[4][-6:]

    async def asked(**arguments: Any) -> list[int]:
        found = await store.query_rollouts(**arguments)
        assert found.total >= len(found)
        return [item.input for item in found]

    assert await asked(limit=3, offset=2) == [2, 3, 4]
    assert await asked(rollout_id_in=[ids[5], ids[2], "x", ids[2]]) == [2, 5]
    assert await asked(rollout_id_in=[ids[5], ids[4]], status_in=["cancelled"]) == [4]
    assert await asked(
        rollout_id_in=[ids[0]], status_in=["cancelled"], filter_logic="or", sort_by="end_time"
    ) == [1, 4, 6, 0]
    assert await asked(rollout_id_contains=part) == [4]
    assert await asked(rollout_id_contains=part, status_in=["queuing"]) == []
    assert await asked(status_in=["cancelled", "queuing"], limit=2, offset=5) == [5, 6]
    assert await asked(status_in=["cancelled"], sort_by="end_time", sort_order="desc") == [6, 4, 1]
    assert await asked(sort_by="start_time", sort_order="desc", limit=2) == [11, 10]
    with pytest.warns(DeprecationWarning, match="status_in"):
        assert await asked(status=["cancelled"], limit=1) == [1]
    with pytest.warns(DeprecationWarning, match="rollout_id_in"):
        assert await asked(rollout_ids=[ids[3]]) == [3]
    for wrong in ({"sort_by": "config"}, {"filter_logic": "x"}, {"limit": -2}, {"sort_order": "x"}):
        with pytest.raises(InvalidArgumentError):
            await store.query_rollouts(**wrong)  # pyright: ignore[reportArgumentType]


async def test_spans_are_found_in_every_order(store: InMemoryLightningStore):
    made = await store.start_rollout("x")
    numbers = [5, 1, 3, 3, 2]
    spans = [
        span_of(made, number, span_id=f"{at:016x}", name=f"n{at % 2}", start_time=float(-at))
        for at, number in enumerate(numbers)
    ]
    assert await store.add_many_spans(spans) == spans

    async def asked(**arguments: Any) -> list[int]:
        found = await store.query_spans(made.rollout_id, **arguments)
        return [int(item.span_id, 16) for item in found]

    assert await asked() == [1, 4, 2, 3, 0]
    assert await asked(sort_order="desc") == [0, 2, 3, 4, 1]
    assert await asked(sort_by=None) == [0, 1, 2, 3, 4]
    assert await asked(sort_by="start_time") == [4, 3, 2, 1, 0]
    assert await asked(name="n1") == [1, 3]
    assert await asked(span_id=f"{2:016x}") == [2]
    assert await asked(span_id=f"{2:016x}", name="n1") == []
    assert await asked(span_id=f"{2:016x}", name="n1", filter_logic="or") == [1, 2, 3]
    assert await asked(filter_logic="or") == [1, 4, 2, 3, 0]
    assert await asked(limit=2, offset=1) == [4, 2]
    assert await asked(attempt_id="at-unknown") == []
    queued = await store.enqueue_rollout("y")
    assert list(await store.query_spans(queued.rollout_id, "latest")) == []
    assert list(await store.query_spans(queued.rollout_id)) == []
    with pytest.raises(InvalidArgumentError, match="sort by one of: sequence_id"):
        await store.query_spans(made.rollout_id, sort_by="status")


async def test_encoded_spans_are_shared_and_counted(store: InMemoryLightningStore):
    made = await store.start_rollout("x")
    payload = span_of(made).model_dump_json().encode()
    span = Span.model_validate_json(payload)
    encoded = EncodedSpan(
        *(span.rollout_id, span.attempt_id, 1, span.trace_id, span.span_id, None, span.name),
        *(None, None, payload),
    )
    assert await store.add_encoded_spans([encoded]) == [encoded]
    (found,) = (await store.query_encoded_spans(made.rollout_id)).items
    assert found is encoded
    assert await store.add_encoded_spans([encoded]) == []
    statistics = await store.statistics()
    assert statistics.get("total_span_bytes", 0) >= len(payload)


async def test_the_cost_of_a_page_grows_with_its_length(store: InMemoryLightningStore):
    """Ten times the rollouts must not make a page ten times as slow."""

    async def cost(count: int) -> float:
        have = (await store.statistics()).get("total_rollouts", 0)
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1)] * (count - have))
        best = 1e9
        for _ in range(30):
            start = time.perf_counter()
            page = await store.query_rollouts(
                status_in=["queuing"], sort_by="start_time", sort_order="desc", limit=50
            )
            best = min(best, time.perf_counter() - start)
            assert (len(page), page.total) == (50, count)
        return best

    few = await cost(2_000)
    assert await cost(20_000) < 5 * few


# -- the store as a whole --------------------------------------------------------------------------


async def test_capabilities_and_statistics():
    store = InMemoryLightningStore(eviction_memory_threshold=1000, safe_memory_threshold=10)
    assert store.capabilities == {
        "thread_safe": True,
        "async_safe": True,
        "zero_copy": False,
        "otlp_traces": False,
        "events": True,
        "compare_and_set": True,
    }
    assert not InMemoryLightningStore(thread_safe=False).capabilities.get("thread_safe")
    with pytest.raises(NotImplementedError, match="accepts no OTLP"):
        store.otlp_traces_endpoint()
    statistics = await store.statistics()
    assert statistics.pop("uptime") >= 0  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert abs(await store.now() - time.time()) < 60
    assert statistics.pop("memory_capacity_bytes") > 1e8  # pyright: ignore[reportTypedDictNotRequiredAccess]
    zero = ("rollouts", "attempts", "spans", "resources", "workers", "span_bytes")
    assert statistics == {
        "name": "InMemoryLightningStore",
        "eviction_threshold_bytes": 1000,
        "safe_threshold_bytes": 10,
        **{f"total_{name}": 0 for name in zero},
    }


def test_one_store_serves_loops_in_succession(store: InMemoryLightningStore):
    made = asyncio.run(store.enqueue_rollout("x"))

    async def timeout() -> None:
        ids = [made.rollout_id]
        assert await store.wait_for_rollouts(rollout_ids=ids, timeout=0.02) == []
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.wait_for_rollouts(rollout_ids=ids), 0.02)

    asyncio.run(timeout())
    assert asyncio.run(store.dequeue_rollout("w")) is not None
    assert asyncio.run(store.dequeue_rollout("w", wait=0.02)) is None
    asyncio.run(store.update_attempt(made.rollout_id, "latest", status="succeeded"))
    assert len(asyncio.run(store.wait_for_rollouts(rollout_ids=[made.rollout_id]))) == 1


def test_threads_write_one_rollout_without_losing_a_span(store: InMemoryLightningStore):
    made = asyncio.run(store.start_rollout("x"))
    ids = (made.rollout_id, made.attempt.attempt_id)

    async def write() -> None:
        for _ in range(50):
            number = await store.get_next_span_sequence_id(*ids)
            assert await store.add_span(span_of(made, number)) is not None

    with ThreadPoolExecutor(8) as pool:
        for job in [pool.submit(lambda: asyncio.run(write())) for _ in range(8)]:
            job.result()
    found = asyncio.run(store.query_spans(made.rollout_id))
    assert [span.sequence_id for span in found] == list(range(1, 401))
    assert asyncio.run(store.statistics()).get("total_spans") == 400


# -- spans held as objects -------------------------------------------------------------------------

_PLAIN = {
    "text": "x",
    "number": 1,
    "real": 0.5,
    "yes": True,
    "texts": ["a", "b"],
    "numbers": [1, 2],
}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"parent_id": "0b" * 8},
        {"resource": OtelResource(attributes={"service": ["a"]}, schema_url="s")},
        {"status": TraceStatus(status_code="ERROR", description="no")},
        {"extra": {"kind": "CLIENT", "instrumentation_scope": {"name": "n", "version": "1"}}},
    ],
    ids=["plain", "parent", "resource", "status", "keys of the SDK"],
)
async def test_a_plain_span_is_copied_and_not_encoded(
    store: InMemoryLightningStore, fields: dict[str, Any]
):
    made = await store.start_rollout("x")
    fields = dict(fields)
    extra = fields.pop("extra", {})
    span = Span.from_attributes(
        attributes=dict(_PLAIN),
        rollout_id=made.rollout_id,
        attempt_id=made.attempt.attempt_id,
        sequence_id=1,
        **fields,
    )
    span = Span.model_validate({**span.model_dump(), **extra})
    await store.add_span(span)
    (held,) = await store.query_encoded_spans(made.rollout_id)
    assert held.parts is not None
    expected = span.model_copy(deep=True)
    cast("Any", span.attributes["texts"]).append("c")
    span.resource.attributes["more"] = 1
    span.status.description = "changed"
    cast("Any", span.model_extra).get("instrumentation_scope", {})["name"] = "changed"
    for _ in range(2):
        (read,) = await store.query_spans(made.rollout_id)
        assert read == expected
        assert read.model_dump_json() == expected.model_dump_json()
        assert read.model_dump(exclude_unset=True) == expected.model_dump()
        cast("Any", read.model_extra).get("instrumentation_scope", {})["name"] = "changed"
        cast("Any", read.attributes["texts"]).append("d")
        read.events.append(Event(name="e", attributes={}))
        read.resource.attributes.clear()
        if read.context is not None:
            read.context.trace_state["k"] = "v"
        read.extra_key = 1  # pyright: ignore[reportAttributeAccessIssue]
    assert held.payload == expected.model_dump_json().encode()


async def test_other_spans_are_encoded_at_once(store: InMemoryLightningStore):
    made = await store.start_rollout("x")
    unusual = [
        span_of(made, 1, span_id="01" * 8).model_copy(
            update={"events": [Event(name="e", attributes={"k": 1})]}
        ),
        Span.model_validate({**span_of(made, 2, span_id="02" * 8).model_dump(), "extra": [1]}),
    ]
    await store.add_many_spans(unusual)
    held = (await store.query_encoded_spans(made.rollout_id)).items
    assert [item.parts for item in held] == [None, None]
    assert list(await store.query_spans(made.rollout_id)) == unusual
    mixed = span_of(made, 3)
    await store.add_span(mixed)
    assert list(await store.query_spans(made.rollout_id)) == [*unusual, mixed]


async def test_an_attribute_without_a_json_form_is_refused(store: InMemoryLightningStore):
    made = await store.start_rollout("x")
    bad = span_of(made)
    bad.attributes["k"] = object()  # pyright: ignore[reportArgumentType]
    with pytest.raises(PydanticSerializationError):
        await store.add_span(bad)
    assert (await store.statistics()).get("total_spans") == 0
