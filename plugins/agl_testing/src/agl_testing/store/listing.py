"""Every query sorted by every field, in pages, and past the sizes at which pages and batches end.

The result of a query follows from the whole list in insertion order: sorting is stable in both
directions, a missing time sorts as the latest, a missing text as ``""``, a missing number as 0.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from agl_core.errors import InvalidArgumentError
from agl_core.store import LightningStore
from agl_core.types import AttemptedRollout, EnqueueRolloutRequest
from agl_testing.samples import named_resources, span_of
from agl_testing.store.base import StoreTests, claim

__all__ = ["BatchTests", "SortingTests"]

Query = Callable[..., Awaitable[Sequence[Any]]]

MANY = 300
"""More than any batch that a client or a database splits silently should hold."""
A_THOUSAND = 1_100
"""More than a page of 1,000, the largest that stores have by default."""

ROLLOUT_FIELDS = ["rollout_id", "start_time", "end_time", "mode", "resources_id", "status"]
ATTEMPT_FIELDS = ["rollout_id", "attempt_id", "sequence_id", "start_time", "end_time", "status"]
ATTEMPT_FIELDS += ["worker_id", "last_heartbeat_time"]
RESOURCES_FIELDS = ["resources_id", "create_time", "update_time", "version"]
WORKER_FIELDS = ["worker_id", "status", "last_heartbeat_time", "last_dequeue_time"]
WORKER_FIELDS += ["last_busy_time", "last_idle_time", "current_rollout_id", "current_attempt_id"]
SPAN_FIELDS = ["sequence_id", "start_time", "end_time", "name", "span_id", "trace_id", "parent_id"]
SPAN_FIELDS += ["rollout_id", "attempt_id"]


def sorted_by(records: Sequence[Any], field: str, order: str) -> list[Any]:
    """Sort records as a query must, given them in insertion order."""
    missing: Any = ""
    if field.endswith("_time"):
        missing = math.inf
    elif field in ("sequence_id", "version"):
        missing = 0

    def key(record: Any) -> Any:
        value = getattr(record, field)
        return missing if value is None else value

    return sorted(records, key=key, reverse=order == "desc")


async def check_sorting(query: Query, field: str) -> None:
    """Compare the pages of a query, sorted by a field, with the whole list."""
    everything = list(await query(sort_by=None))
    assert len(everything) >= 4, "too few records to see an order"
    for order in ("asc", "desc"):
        expected = sorted_by(everything, field, order)
        page: Any = await query(sort_by=field, sort_order=order)
        assert list(page) == expected
        for limit, offset in [(2, 0), (2, 1), (2, len(expected) - 1), (-1, 2), (3, 99)]:
            page = await query(sort_by=field, sort_order=order, limit=limit, offset=offset)
            end = None if limit == -1 else offset + limit
            assert list(page) == expected[offset:end], (field, order, limit, offset)
            assert (page.total, page.limit, page.offset) == (len(expected), limit, offset)


def _reward(value: float) -> dict[str, Any]:
    return {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}


def _ids(claimed: AttemptedRollout) -> tuple[str, str]:
    return claimed.rollout_id, claimed.attempt.attempt_id


def _seconds(rollout: Any) -> float:
    """Return what a rollout is sorted by: the seconds of its attempt, the smallest if it runs."""
    attempt = rollout.attempt
    return -math.inf if attempt.end_time is None else attempt.end_time - attempt.start_time


class SortingTests(StoreTests):
    """Sorting, directions and offsets of each query."""

    @pytest.mark.parametrize("field", ROLLOUT_FIELDS)
    async def test_rollouts_sort_by_every_field(self, store: LightningStore, field: str):
        for index, mode in enumerate(["val", None, "train", "val", "test"]):
            rollout = await store.enqueue_rollout(
                index,
                mode=mode,  # pyright: ignore[reportArgumentType]
                resources_id=["rs-b", None, "rs-a", "rs-b", None][index],
            )
            if index % 2:
                await store.update_rollout(rollout.rollout_id, status="failed")
        await check_sorting(store.query_rollouts, field)

    async def test_rollouts_sort_by_reward_and_by_duration(self, store: LightningStore):
        ids: dict[str, str] = {}
        for name, reward in (("a", 0.5), ("b", None), ("c", -1.0), ("d", 0.5), ("e", 2.0)):
            claimed = await claim(store)
            ids[claimed.rollout_id] = name
            spans = [span_of(claimed, 1, attributes={"other": "reward"})]
            if reward is not None:
                spans += [
                    span_of(claimed, 2, attributes=_reward(9.0)),
                    span_of(claimed, 3, attributes=_reward(reward)),
                    span_of(claimed, 4, attributes=_reward(math.nan)),
                ]
            await store.add_many_spans(spans)
            if name != "d":  # it runs on
                await asyncio.sleep(0.002)
                await store.update_attempt(*_ids(claimed), status="succeeded")

        async def order(**query: Any) -> str:
            page = await store.query_rollouts(**query)
            assert page.total == 5
            return "".join(ids[rollout.rollout_id] for rollout in page)

        # Equal rewards keep the order of insertion, and a missing one is the smallest.
        assert await order(sort_by="reward", sort_order="desc") == "eadcb"
        assert await order(sort_by="reward", sort_order="asc") == "bcade"
        assert await order(sort_by="reward", sort_order="desc", limit=2, offset=1) == "ad"
        assert await order(sort_by="reward", sort_order="asc", limit=-1, offset=3) == "de"
        everything = await store.query_rollouts()
        took = {each.rollout_id: _seconds(each) for each in everything}
        for direction in ("asc", "desc"):
            expected = sorted(took, key=lambda each: took[each], reverse=direction == "desc")
            found = await store.query_rollouts(sort_by="duration", sort_order=direction)
            assert [each.rollout_id for each in found] == expected

    async def test_the_reward_to_sort_by_is_that_of_the_latest_attempt(self, store: LightningStore):
        first, second = await claim(store), await claim(store)
        await store.add_span(span_of(first, 1, attributes=_reward(5.0)))
        await store.add_span(span_of(second, 1, attributes=_reward(1.0)))
        await store.update_attempt(*_ids(first), status="failed")
        again = await store.start_attempt(first.rollout_id)

        async def order() -> list[str]:
            page = await store.query_rollouts(sort_by="reward", sort_order="desc")
            return [rollout.rollout_id for rollout in page]

        assert await order() == [second.rollout_id, first.rollout_id]
        # A late span of the attempt before changes nothing.
        await store.add_span(span_of(first, 2, attributes=_reward(6.0), span_id="aa" * 8))
        assert await order() == [second.rollout_id, first.rollout_id]
        await store.add_span(span_of(again, 3, attributes=_reward(2.0), span_id="bb" * 8))
        assert await order() == [first.rollout_id, second.rollout_id]

    async def test_rollouts_are_filtered_by_mode(self, store: LightningStore):
        ids = [
            (await store.enqueue_rollout(index, mode=mode)).rollout_id  # pyright: ignore[reportArgumentType]
            for index, mode in enumerate(["val", None, "train", "val", "test"])
        ]
        await store.update_rollout(ids[3], status="failed")

        async def found(**query: Any) -> list[int]:
            page = await store.query_rollouts(**query)
            assert page.total == len(page.items) or "limit" in query
            return [ids.index(rollout.rollout_id) for rollout in page]

        assert await found(mode_in=["val"]) == [0, 3]
        assert await found(mode_in=["val", "test"]) == [0, 3, 4]
        assert await found(mode_in=[]) == []
        assert await found(mode_in=None) == [0, 1, 2, 3, 4]
        assert await found(mode_in=["val"], status_in=["failed"]) == [3]
        assert await found(mode_in=["test"], status_in=["failed"], filter_logic="or") == [3, 4]
        assert await found(mode_in=["val"], rollout_id_in=ids[:3]) == [0]
        newest: dict[str, Any] = {"sort_by": "start_time", "sort_order": "desc"}
        assert await found(mode_in=["val"], **newest, limit=1) == [3]
        page = await store.query_rollouts(mode_in=["val"], **newest, limit=1, offset=1)
        assert (page.items[0].rollout_id, page.total) == (ids[0], 2)

    @pytest.mark.parametrize("field", ATTEMPT_FIELDS)
    async def test_attempts_sort_by_every_field(self, store: LightningStore, field: str):
        claimed = await claim(store, worker_id="b")
        for worker_id in ("a", None, "c", "b"):
            await store.start_attempt(claimed.rollout_id, worker_id=worker_id)
        attempts = list(await store.query_attempts(claimed.rollout_id))
        for attempt, beat in zip(attempts, [5.0, None, 3.0, None, 4.0], strict=True):
            if beat is not None:
                ids = (claimed.rollout_id, attempt.attempt_id)
                await store.update_attempt(*ids, status="failed", last_heartbeat_time=beat)

        async def query(**options: Any) -> Sequence[Any]:
            return await store.query_attempts(claimed.rollout_id, **options)

        await check_sorting(query, field)

    @pytest.mark.parametrize("field", RESOURCES_FIELDS)
    async def test_resources_sort_by_every_field(self, store: LightningStore, field: str):
        for name in ("d", "b", "a", "c", "b", "b", "d"):
            await store.update_resources(name, {})
        await check_sorting(store.query_resources, field)

    @pytest.mark.parametrize("field", WORKER_FIELDS)
    async def test_workers_sort_by_every_field(self, store: LightningStore, field: str):
        for name in ("w-c", "w-a", "w-d", "w-b"):
            await store.update_worker(name)
        await store.dequeue_rollout("w-a")
        await claim(store, worker_id="w-d")
        await check_sorting(store.query_workers, field)

    @pytest.mark.parametrize("field", SPAN_FIELDS)
    async def test_spans_sort_by_every_field(self, store: LightningStore, field: str):
        first = await claim(store)
        second = await store.start_attempt(first.rollout_id)
        for index, name in enumerate(["b", "a", "c", "a", "b"]):
            span = span_of(
                (first, second)[index % 2],
                [3, 1, 2, 1, 5][index],
                name=name,
                span_id=f"{9 - index:02x}" * 8,
                trace_id=f"{index % 3 + 1:02x}" * 16,
                parent_id=None if index % 2 else f"{7 - index:02x}" * 8,
            )
            await store.add_span(span.model_copy(update={"end_time": None}) if index == 2 else span)

        async def query(**options: Any) -> Sequence[Any]:
            return await store.query_spans(first.rollout_id, **options)

        await check_sorting(query, field)

    @pytest.mark.parametrize(
        "bad",
        [{"limit": -2}, {"offset": -1}, {"sort_order": "up"}, {"sort_by": "nothing"}],
        ids=str,
    )
    async def test_a_page_that_cannot_be_is_refused(
        self, store: LightningStore, bad: dict[str, Any]
    ):
        claimed = await claim(store, worker_id="w")
        calls = [store.query_rollouts, store.query_resources, store.query_workers]
        for query in calls:
            with pytest.raises(InvalidArgumentError):
                await query(**bad)
        for query in (store.query_attempts, store.query_spans):
            with pytest.raises(InvalidArgumentError):
                await query(claimed.rollout_id, **bad)

    async def test_an_unknown_way_to_combine_filters_is_refused(self, store: LightningStore):
        claimed = await claim(store, worker_id="w")
        logic: Any = "xor"
        with pytest.raises(InvalidArgumentError):
            await store.query_rollouts(filter_logic=logic)
        with pytest.raises(InvalidArgumentError):
            await store.query_workers(filter_logic=logic)
        with pytest.raises(InvalidArgumentError):
            await store.query_spans(claimed.rollout_id, filter_logic=logic)


class BatchTests(StoreTests):
    """Batches and pages of hundreds and of more than a thousand."""

    async def test_batches_of_hundreds_are_whole_and_in_order(self, store: LightningStore):
        requests = [EnqueueRolloutRequest(input=i, mode="train") for i in range(MANY)]
        rollouts = await store.enqueue_many_rollouts(requests)
        assert [rollout.input for rollout in rollouts] == list(range(MANY))
        claimed = await store.dequeue_many_rollouts(limit=MANY + 5, worker_id="w")
        assert [rollout.rollout_id for rollout in claimed] == [r.rollout_id for r in rollouts]
        ids = [rollout.rollout_id for rollout in claimed][::-1]
        page = await store.query_rollouts(rollout_id_in=ids)
        assert [rollout.input for rollout in page] == list(range(MANY))
        for rollout in claimed[:-1]:
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        done = await store.wait_for_rollouts(rollout_ids=ids, timeout=0)
        assert [rollout.rollout_id for rollout in done] == ids[1:]
        assert (await store.query_rollouts(status_in=["succeeded"])).total == MANY - 1

    async def test_hundreds_of_spans_of_two_rollouts_are_one_batch(self, store: LightningStore):
        a, b = await claim(store, "a"), await claim(store, "b")
        pairs = [((a, b)[i % 2], i) for i in range(MANY)]
        ids = [(item.rollout_id, item.attempt.attempt_id) for item, _ in pairs]
        numbers = await store.get_many_span_sequence_ids(ids)
        assert list(numbers) == [1 + i // 2 for i in range(MANY)]
        batch = [
            span_of(item, number, name=str(i))
            for (item, i), number in zip(pairs, numbers, strict=True)
        ]
        stored = await store.add_many_spans(batch)
        assert [span.name for span in stored] == [span.name for span in batch]
        for item, start in ((a, 0), (b, 1)):
            read = await store.query_spans(item.rollout_id)
            assert [span.name for span in read] == [str(i) for i in range(start, MANY, 2)]
        again = await store.add_many_spans([*batch, span_of(a, MANY, name="new")])
        assert [span.name for span in again] == ["new"]

    async def test_a_list_past_a_thousand_is_whole(self, store: LightningStore):
        assert not await store.query_rollouts()  # a store may make an index for it
        requests = [EnqueueRolloutRequest(input=i) for i in range(A_THOUSAND)]
        await store.enqueue_many_rollouts(requests)
        page = await store.query_rollouts()
        assert [rollout.input for rollout in page] == list(range(A_THOUSAND))
        page = await store.query_rollouts(offset=A_THOUSAND - 30, limit=50)
        assert [rollout.input for rollout in page] == list(range(A_THOUSAND - 30, A_THOUSAND))
        page = await store.query_rollouts(limit=A_THOUSAND - 20)
        assert len(page) == A_THOUSAND - 20
        assert page.total == A_THOUSAND

    async def test_a_list_is_in_order_whatever_the_order_of_updates(self, store: LightningStore):
        requests = [EnqueueRolloutRequest(input=i) for i in range(A_THOUSAND)]
        ids = [r.rollout_id for r in await store.enqueue_many_rollouts(requests)]
        # Some of them in reverse, then some of the others forwards: neither is the list's order.
        moved = [*range(A_THOUSAND // 2, 0, -5), *range(A_THOUSAND // 2 + 1, A_THOUSAND, 10)]
        for start in range(0, len(moved), 50):
            some = moved[start : start + 50]
            await asyncio.gather(
                *(store.update_rollout(ids[index], status="cancelled") for index in some)
            )
        page = await store.query_rollouts(status_in=["cancelled"])
        assert [rollout.input for rollout in page] == sorted(moved)
        page = await store.query_rollouts(status_in=["cancelled"], offset=100, limit=50)
        assert [rollout.input for rollout in page] == sorted(moved)[100:150]
        page = await store.query_rollouts(status_in=["queuing"])
        assert [rollout.input for rollout in page] == sorted(set(range(A_THOUSAND)) - set(moved))

    async def test_the_spans_of_a_long_trace_are_whole(self, store: LightningStore):
        claimed = await claim(store)
        spans = [span_of(claimed, i, name=str(i)) for i in range(1, A_THOUSAND + 1)]
        for start in range(0, A_THOUSAND, 400):
            await store.add_many_spans(spans[start : start + 400])
        read = await store.query_spans(claimed.rollout_id, "latest")
        assert [span.name for span in read] == [span.name for span in spans]
        read = await store.query_spans(claimed.rollout_id, limit=70, offset=A_THOUSAND - 80)
        assert [span.name for span in read] == [s.name for s in spans[-80:-10]]
        assert read.total == A_THOUSAND
        ids = (claimed.rollout_id, claimed.attempt.attempt_id)
        assert await store.get_next_span_sequence_id(*ids) == A_THOUSAND + 1

    async def test_lists_past_fifty_are_whole(self, store: LightningStore):
        claimed = await claim(store)
        for index in range(1, 71):
            await store.update_resources(f"rs-{index:03}", named_resources(str(index)))
            await store.update_worker(f"w-{index:03}")
            await store.start_attempt(claimed.rollout_id)
        resources = await store.query_resources(sort_by="resources_id")
        assert [u.resources_id for u in resources] == [f"rs-{i:03}" for i in range(1, 71)]
        workers = await store.query_workers(sort_by="worker_id")
        assert [w.worker_id for w in workers] == [f"w-{i:03}" for i in range(1, 71)]
        attempts = await store.query_attempts(claimed.rollout_id)
        assert [attempt.sequence_id for attempt in attempts] == list(range(1, 72))
        latest = await store.get_latest_attempt(claimed.rollout_id)
        assert latest == attempts[-1]
