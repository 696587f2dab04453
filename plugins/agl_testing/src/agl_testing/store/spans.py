"""Spans: storage, order, duplicates, effects of their arrival, sequence ids."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from agl_core.errors import (
    AttemptNotFoundError,
    InvalidArgumentError,
    RolloutNotFoundError,
    SpansEvictedError,
)
from agl_core.store import MAX_SPAN_ATTRIBUTES, MAX_SPAN_BYTES, LightningStore
from agl_testing.samples import full_span, span_of
from agl_testing.store.base import StoreTests, claim, statuses
from agl_testing.suite import requires

__all__ = ["SpanArrivalTests", "SpanTests"]


class SpanTests(StoreTests):
    """Storing and finding spans."""

    async def test_a_span_comes_back_whole(self, store: LightningStore):
        span = full_span(await claim(store))
        assert await store.add_span(span) == span
        (read,) = await store.query_spans(span.rollout_id)
        assert read == span
        assert read.model_dump() == span.model_dump()
        assert {k: type(v) for k, v in read.attributes.items()} == {
            k: type(v) for k, v in span.attributes.items()
        }

    async def test_numbers_that_json_does_not_have_keep_a_rollout_readable(
        self, store: LightningStore
    ):
        claimed = await claim(store)
        odd: dict[str, Any] = {"scores": [0.5, -math.inf], "all": [math.nan], "one": math.inf}
        await store.add_span(span_of(claimed, attributes=odd))
        (read,) = await store.query_spans(claimed.rollout_id)
        assert read.attributes["scores"] in ([0.5, -math.inf], "[0.5,-Infinity]")
        # A list with such a number, and such a number by itself, may come back as text.
        assert str(read.attributes["all"]) in ("[nan]", "['NaN']")
        assert str(read.attributes["one"]) in ("inf", "Infinity")

    async def test_what_is_returned_is_not_shared(self, store: LightningStore):
        claimed = await claim(store, {"deep": [1]})
        span = span_of(claimed, attributes={"k": "v"})
        await store.add_span(span)
        span.attributes["k"] = "changed"
        (read,) = await store.query_spans(claimed.rollout_id)
        assert read.attributes == {"k": "v"}
        read.attributes["k"] = "changed"
        claimed.input["deep"].append(2)
        claimed.attempt.status = "failed"
        (again,) = await store.query_spans(claimed.rollout_id)
        rollout = await store.get_rollout_by_id(claimed.rollout_id)
        assert again.attributes == {"k": "v"}
        assert rollout is not None
        assert rollout.input == {"deep": [1]}
        assert (await statuses(store, claimed.rollout_id))[1] == ["running"]

    async def test_a_span_has_a_largest_number_of_attributes(self, store: LightningStore):
        claimed = await claim(store)
        largest: dict[str, Any] = {f"k{n}": n for n in range(MAX_SPAN_ATTRIBUTES)}
        assert await store.add_span(span_of(claimed, 1, attributes=largest)) is not None
        refused = [span_of(claimed, 2), span_of(claimed, 3, attributes={**largest, "more": 1})]
        with pytest.raises(InvalidArgumentError, match=f"{MAX_SPAN_ATTRIBUTES + 1} attributes"):
            await store.add_many_spans(refused)
        (read,) = (await store.query_spans(claimed.rollout_id)).items
        assert read.attributes == largest

    async def test_a_span_has_a_largest_size(self, store: LightningStore):
        claimed = await claim(store)
        large: dict[str, Any] = {"text": "x" * (MAX_SPAN_BYTES + 1)}
        with pytest.raises(InvalidArgumentError, match=str(MAX_SPAN_BYTES)):
            await store.add_span(span_of(claimed, 1, attributes=large))
        assert not await store.query_spans(claimed.rollout_id)

    async def test_a_duplicate_is_skipped_and_said(self, store: LightningStore):
        claimed = await claim(store)
        span = span_of(claimed, 1)
        assert await store.add_span(span) == span
        assert await store.add_span(span) is None
        other = span_of(claimed, 2)
        assert [s.span_id for s in await store.add_many_spans([span, other, other])] == [
            other.span_id
        ]
        assert len(await store.query_spans(claimed.rollout_id)) == 2

    async def test_the_first_of_equal_spans_in_a_batch_keeps_its_place(self, store: LightningStore):
        claimed = await claim(store)
        a = span_of(claimed, 1, name="a", span_id="0a" * 8)
        b = span_of(claimed, 1, name="b", span_id="0b" * 8)
        again = a.model_copy(update={"name": "again"})
        stored = await store.add_many_spans([a, b, again])
        assert [span.name for span in stored] == ["a", "b"]
        # Equal sequence ids: the order of arrival decides.
        assert [span.name for span in await store.query_spans(claimed.rollout_id)] == ["a", "b"]

    async def test_what_a_batch_returns_is_what_it_stored(self, store: LightningStore):
        a, b = await claim(store, "a"), await claim(store, "b")
        known = span_of(a, 1)
        await store.add_span(known)
        batch = [span_of(b, 1), known, span_of(a, 2), span_of(b, 2)]
        stored = await store.add_many_spans(batch)
        assert [s.span_id for s in stored] == [batch[i].span_id for i in (0, 2, 3)]
        assert len(await store.query_spans(a.rollout_id)) == 2
        assert [s.span_id for s in await store.query_spans(b.rollout_id)] == [
            batch[0].span_id,
            batch[3].span_id,
        ]

    async def test_the_same_span_id_in_another_attempt_is_another_span(self, store: LightningStore):
        claimed = await claim(store)
        second = await store.start_attempt(claimed.rollout_id)
        await store.add_span(span_of(claimed, 1, span_id="0a" * 8))
        assert await store.add_span(span_of(second, 2, span_id="0a" * 8)) is not None
        assert len(await store.query_spans(claimed.rollout_id)) == 2

    async def test_a_batch_with_an_unknown_id_stores_nothing(self, store: LightningStore):
        claimed = await claim(store)
        good = span_of(claimed, 1)
        with pytest.raises(RolloutNotFoundError):
            await store.add_many_spans([good, good.model_copy(update={"rollout_id": "ro-no"})])
        with pytest.raises(AttemptNotFoundError):
            await store.add_many_spans([good, span_of(claimed, 2, attempt_id="at-no")])
        assert len(await store.query_spans(claimed.rollout_id)) == 0

    async def test_an_empty_batch_is_nothing(self, store: LightningStore):
        assert list(await store.add_many_spans([])) == []
        assert list(await store.get_many_span_sequence_ids([])) == []

    async def test_spans_come_in_sequence_order_and_ties_in_insertion_order(
        self, store: LightningStore
    ):
        claimed = await claim(store)
        for sequence_id, name in [(3, "a"), (1, "b"), (2, "c"), (1, "d")]:
            await store.add_span(span_of(claimed, sequence_id, name=name))
        read = await store.query_spans(claimed.rollout_id)
        assert [span.name for span in read] == ["b", "d", "c", "a"]
        read = await store.query_spans(claimed.rollout_id, sort_order="desc")
        assert [span.sequence_id for span in read] == [3, 2, 1, 1]

    async def test_spans_are_kept_by_attempt(self, store: LightningStore):
        first = await claim(store)
        second = await store.start_attempt(first.rollout_id)
        await store.add_many_spans([span_of(first, 1, name="1"), span_of(second, 2, name="2")])

        async def names(attempt_id: str | None) -> list[str]:
            return [s.name for s in await store.query_spans(first.rollout_id, attempt_id)]

        assert await names(None) == ["1", "2"]
        assert await names("latest") == ["2"]
        assert await names(first.attempt.attempt_id) == ["1"]
        assert await names("at-nothing") == []

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ({}, ["a", "b", "ab"]),
            ({"filter_logic": "or"}, ["a", "b", "ab"]),
            ({"name": "a"}, ["a"]),
            ({"name_contains": "b"}, ["b", "ab"]),
            ({"name_contains": "B"}, []),
            ({"name": "a", "name_contains": "b"}, []),
            ({"name": "a", "name_contains": "b", "filter_logic": "or"}, ["a", "b", "ab"]),
            ({"span_id": "02" * 8}, ["b"]),
            ({"span_id": "02" * 8, "name": "a"}, []),
            ({"span_id": "02" * 8, "name": "a", "filter_logic": "or"}, ["a", "b"]),
            ({"span_id": "02" * 8, "limit": 5}, ["b"]),
            ({"span_id": "0e" * 8}, []),
            ({"span_id_contains": "0303"}, ["ab"]),
            ({"trace_id": "0f" * 16}, ["a", "b", "ab"]),
            ({"trace_id_contains": "1f"}, []),
            ({"parent_id": "01" * 8}, ["b"]),
            ({"parent_id_contains": "01"}, ["b"]),
            ({"limit": 2}, ["a", "b"]),
            ({"limit": 2, "offset": 2}, ["ab"]),
            ({"limit": 0}, []),
            ({"offset": 9}, []),
            ({"sort_by": "name"}, ["a", "ab", "b"]),
            ({"sort_by": "name", "sort_order": "desc"}, ["b", "ab", "a"]),
            ({"sort_by": "start_time", "sort_order": "desc"}, ["ab", "b", "a"]),
            ({"sort_by": None}, ["a", "b", "ab"]),
        ],
        ids=str,
    )
    async def test_filters_pages_and_sorts(
        self, store: LightningStore, filters: dict[str, Any], expected: list[str]
    ):
        claimed, other = await claim(store), await claim(store, "other")
        for index, name in enumerate(["a", "b", "ab"], start=1):
            await store.add_span(
                span_of(
                    claimed,
                    index,
                    name=name,
                    span_id=f"0{index}" * 8,
                    trace_id="0f" * 16,
                    parent_id="01" * 8 if name == "b" else None,
                )
            )
        await store.add_span(span_of(other, 1, name="a", trace_id="0f" * 16))
        page = await store.query_spans(claimed.rollout_id, **filters)
        assert [span.name for span in page] == expected
        paging = not {"limit", "offset"}.isdisjoint(filters) and "span_id" not in filters
        assert page.total == (3 if paging else len(expected))

    async def test_unknown_ids_have_no_spans(self, store: LightningStore):
        for attempt_id in ("latest", None, "at-nothing"):
            page = await store.query_spans("ro-nothing", attempt_id)
            assert list(page) == []
            assert page.total == 0
        queued = await store.enqueue_rollout("x")
        for attempt_id in ("latest", None):
            assert list(await store.query_spans(queued.rollout_id, attempt_id)) == []

    # -- sequence ids ----------------------------------------------------------------------------

    async def test_sequence_ids_count_per_rollout_over_all_attempts(self, store: LightningStore):
        a, b = await claim(store, "a"), await claim(store, "b")
        ids = [(a.rollout_id, "x"), (b.rollout_id, "y"), (a.rollout_id, "z"), (a.rollout_id, "x")]
        assert list(await store.get_many_span_sequence_ids(ids)) == [1, 1, 2, 3]
        assert await store.get_next_span_sequence_id(a.rollout_id, "other") == 4
        assert await store.get_next_span_sequence_id("ro-unknown", "at-unknown") == 1

    async def test_an_explicit_sequence_id_raises_the_counter(self, store: LightningStore):
        claimed = await claim(store)
        ids = (claimed.rollout_id, claimed.attempt.attempt_id)
        await store.add_span(span_of(claimed, 100))
        assert await store.get_next_span_sequence_id(*ids) == 101
        await store.add_span(span_of(claimed, 5))
        assert await store.get_next_span_sequence_id(*ids) == 102

    async def test_the_largest_sequence_id_leaves_further_ids_to_draw(self, store: LightningStore):
        """A span with the largest 64-bit sequence id is kept, and does not raise the counter."""
        claimed = await claim(store)
        ids = claimed.rollout_id, claimed.attempt.attempt_id
        await store.add_span(span_of(claimed, 2**63 - 1))
        assert await store.get_next_span_sequence_id(*ids) == 1
        await store.add_span(span_of(claimed, 2))
        assert await store.get_next_span_sequence_id(*ids) == 3
        read = (await store.query_spans(claimed.rollout_id)).items
        assert [span.sequence_id for span in read] == [2, 2**63 - 1]

    async def test_latest_is_not_an_attempt_of_a_span(self, store: LightningStore):
        """``latest`` means an attempt in queries and updates; a span with it is refused."""
        claimed = await claim(store)
        span = span_of(claimed, 1).model_copy(update={"attempt_id": "latest"})
        with pytest.raises(AttemptNotFoundError):
            await store.add_span(span)
        with pytest.raises(AttemptNotFoundError):
            await store.add_many_spans([span_of(claimed, 1), span])
        assert not (await store.query_spans(claimed.rollout_id)).items

    async def test_a_sequence_id_of_zero_is_kept(self, store: LightningStore):
        claimed = await claim(store)
        await store.add_span(span_of(claimed, 0))
        (read,) = await store.query_spans(claimed.rollout_id)
        assert read.sequence_id == 0
        ids = (claimed.rollout_id, claimed.attempt.attempt_id)
        assert await store.get_next_span_sequence_id(*ids) == 1

    # -- eviction --------------------------------------------------------------------------------

    @requires("evicts")
    async def test_finished_rollouts_are_evicted_first(self, small_store: LightningStore):
        store = small_store
        running = await claim(store, "running")
        await store.add_span(span_of(running, attributes={"k": "x" * 1000}))
        finished = await claim(store, "finished")
        await store.add_many_spans(
            [span_of(finished, i, attributes={"k": "x" * 1000}) for i in range(15)]
        )
        await store.update_attempt(finished.rollout_id, "latest", status="succeeded")
        filler = await claim(store, "filler")
        for index in range(1, 2000):
            await store.add_span(span_of(filler, index, attributes={"k": "x" * 1000}))
            try:
                await store.query_spans(finished.rollout_id)
            except SpansEvictedError:
                break
        else:
            pytest.fail("2,000 spans of 1,000 bytes evicted nothing")
        assert len(await store.query_spans(running.rollout_id)) == 1
        assert (await statuses(store, finished.rollout_id))[0] == "succeeded"
        total = (await store.statistics()).get("total_spans")
        kept = len(await store.query_spans(filler.rollout_id))
        assert total == kept + 1


class SpanArrivalTests(StoreTests):
    """A span that arrives is its attempt's heartbeat."""

    async def test_the_first_span_sets_attempt_and_rollout_running(self, store: LightningStore):
        claimed = await claim(store)
        await store.add_span(span_of(claimed))
        assert await statuses(store, claimed.rollout_id) == ("running", ["running"])
        attempt = await store.get_latest_attempt(claimed.rollout_id)
        assert attempt is not None
        assert attempt.last_heartbeat_time is not None

    async def test_a_span_keeps_a_silent_attempt_alive(self, store: LightningStore):
        # Much longer than a write takes on a busy disk.
        claimed = await claim(store, unresponsive_seconds=1.0)
        for index in range(1, 5):
            await asyncio.sleep(0.3)
            await store.add_span(span_of(claimed, index))
            await store.run_watchdog()
        assert await statuses(store, claimed.rollout_id) == ("running", ["running"])

    async def test_a_span_revives_an_unresponsive_attempt(self, store: LightningStore):
        claimed = await claim(store, max_attempts=2, retry_condition=["unresponsive"])
        await store.update_attempt(claimed.rollout_id, "latest", status="unresponsive")
        await store.add_span(span_of(claimed))
        assert await statuses(store, claimed.rollout_id) == ("running", ["running"])
        assert await store.dequeue_rollout() is None
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        assert (await statuses(store, claimed.rollout_id))[0] == "succeeded"

    @pytest.mark.parametrize("status", ["failed", "timeout"])
    async def test_a_span_revives_no_attempt_that_ended(self, store: LightningStore, status: Any):
        claimed = await claim(store, max_attempts=2, retry_condition=[status])
        await store.update_attempt(claimed.rollout_id, "latest", status=status)
        assert await store.add_span(span_of(claimed)) is not None
        assert await statuses(store, claimed.rollout_id) == ("requeuing", [status])
        attempt = await store.get_latest_attempt(claimed.rollout_id)
        assert attempt is not None
        assert attempt.last_heartbeat_time is not None
        assert await store.dequeue_rollout() is not None

    @pytest.mark.parametrize("status", ["succeeded", "failed", "timeout"])
    async def test_late_spans_are_stored(self, store: LightningStore, status: Any):
        claimed = await claim(store)
        await store.update_attempt(claimed.rollout_id, "latest", status=status)
        before = await statuses(store, claimed.rollout_id)
        late = [span_of(claimed, number) for number in (1, 2, 3)]
        stored = await store.add_many_spans(late[:2])
        assert [span.span_id for span in stored] == [span.span_id for span in late[:2]]
        assert await store.add_span(late[2]) is not None
        found = await store.query_spans(claimed.rollout_id)
        assert [span.span_id for span in found] == [span.span_id for span in late]
        assert await statuses(store, claimed.rollout_id) == before

    async def test_a_late_span_of_an_old_attempt_leaves_the_retry_alone(
        self, store: LightningStore
    ):
        first = await claim(store, max_attempts=2, retry_condition=["unresponsive"])
        await store.update_attempt(first.rollout_id, "latest", status="unresponsive")
        assert await store.dequeue_rollout() is not None
        await store.add_span(span_of(first))
        assert await statuses(store, first.rollout_id) == ("preparing", ["running", "preparing"])
        assert await store.dequeue_rollout() is None

    async def test_a_duplicate_is_not_a_heartbeat(self, store: LightningStore):
        claimed = await claim(store)
        span = span_of(claimed)
        await store.add_span(span)
        await store.update_attempt(claimed.rollout_id, "latest", status="unresponsive")
        assert await store.add_span(span) is None
        assert (await statuses(store, claimed.rollout_id))[1] == ["unresponsive"]
