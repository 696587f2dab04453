"""Queries of rollouts, attempts and resources; statistics; waiting; events."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agl_core.errors import InvalidArgumentError
from agl_core.store import LightningStore, LightningStoreStatistics
from agl_core.types import AttemptedRollout, Checkpoint, NamedResources, PromptTemplate
from agl_testing.samples import named_resources, span_of
from agl_testing.store.base import StoreTests, claim
from agl_testing.suite import requires

__all__ = ["EventTests", "QueryTests", "ResourceTests", "WaitTests"]


class QueryTests(StoreTests):
    """Lists of rollouts and attempts, and statistics."""

    async def test_rollouts_come_in_the_order_they_were_created(self, store: LightningStore):
        ids = [(await store.enqueue_rollout(i)).rollout_id for i in range(7)]
        page = await store.query_rollouts()
        assert [rollout.rollout_id for rollout in page] == ids
        assert (page.limit, page.offset, page.total) == (-1, 0, 7)

    async def test_a_rollout_carries_its_latest_attempt(self, store: LightningStore):
        claimed = await claim(store)
        second = await store.start_attempt(claimed.rollout_id)
        queued = await store.enqueue_rollout("q")
        attempted, plain = await store.query_rollouts()
        assert isinstance(attempted, AttemptedRollout)
        assert attempted.attempt == second.attempt
        assert not isinstance(plain, AttemptedRollout)
        assert plain == queued

    @pytest.mark.parametrize(
        ("limit", "offset", "expected"),
        [
            (3, 0, [0, 1, 2]),
            (3, 3, [3, 4]),
            (0, 0, []),
            (-1, 4, [4]),
            (2, 9, []),
            (99, 0, range(5)),
        ],
    )
    async def test_pages(self, store: LightningStore, limit: int, offset: int, expected: Any):
        for i in range(5):
            await store.enqueue_rollout(i)
        page = await store.query_rollouts(limit=limit, offset=offset)
        assert [rollout.input for rollout in page] == list(expected)
        assert (page.limit, page.offset, page.total) == (limit, offset, 5)

    async def test_filters_combine(self, store: LightningStore):
        queued = (await store.enqueue_rollout("queued")).rollout_id
        failed = (await store.enqueue_rollout("failed")).rollout_id
        await store.update_rollout(failed, status="failed")
        suffix = queued[-10:]

        async def found(**filters: Any) -> list[str]:
            page = await store.query_rollouts(**filters)
            assert page.total == len(page)
            return [rollout.rollout_id for rollout in page]

        assert await found(status_in=["failed"]) == [failed]
        assert await found(status_in=["failed", "queuing"]) == [queued, failed]
        assert await found(status_in=[]) == []
        assert await found(rollout_id_in=[failed, "ro-nothing"]) == [failed]
        assert await found(rollout_id_in=[]) == []
        assert await found(rollout_id_contains=suffix) == [queued]
        assert await found(rollout_id_contains=suffix.upper() + "Z") == []
        assert await found(status_in=["failed"], rollout_id_contains=suffix) == []
        assert await found(status_in=["failed"], rollout_id_contains=suffix, filter_logic="or") == [
            queued,
            failed,
        ]
        assert await found(filter_logic="or") == [queued, failed]
        assert await found(status_in=[], filter_logic="or") == []

    async def test_deprecated_filter_names_still_work(self, store: LightningStore):
        rollout = await store.enqueue_rollout("x")
        with pytest.deprecated_call():
            page = await store.query_rollouts(status=["queuing"], rollout_ids=[rollout.rollout_id])
        assert len(page) == 1
        with pytest.deprecated_call():
            page = await store.query_rollouts(status=["failed"], status_in=["queuing"])
        assert len(page) == 1
        other = await store.enqueue_rollout("y")
        with pytest.deprecated_call():
            page = await store.query_rollouts(rollout_ids=[other.rollout_id])
        assert [found.rollout_id for found in page] == [other.rollout_id]
        with pytest.deprecated_call():
            page = await store.query_rollouts(status=["failed"])
        assert list(page) == []

    async def test_sorting_is_stable_and_puts_absent_values_where_they_belong(
        self, store: LightningStore
    ):
        for index, mode in enumerate(["val", None, "train", "val"]):
            await store.enqueue_rollout(index, mode=mode)  # pyright: ignore[reportArgumentType]

        async def inputs(**options: Any) -> list[Any]:
            return [rollout.input for rollout in await store.query_rollouts(**options)]

        assert await inputs(sort_by="mode") == [1, 2, 0, 3]
        assert (await inputs(sort_by="mode", sort_order="desc"))[-1] == 1
        assert await inputs(sort_by="start_time") == [0, 1, 2, 3]
        (last, *_) = await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=1)
        assert last.input == 3
        await store.update_rollout((await store.query_rollouts())[2].rollout_id, status="failed")
        assert (await inputs(sort_by="end_time"))[0] == 2
        assert (await inputs(sort_by="end_time", sort_order="desc"))[-1] == 2

    @pytest.mark.parametrize("field", ["nothing", "config", "metadata"])
    async def test_a_field_without_an_order_is_refused_by_name(
        self, store: LightningStore, field: str
    ):
        await store.enqueue_rollout("x")
        with pytest.raises(InvalidArgumentError, match="start_time"):
            await store.query_rollouts(sort_by=field)

    async def test_attempts_are_listed_in_order(self, store: LightningStore):
        claimed = await claim(store)
        for _ in range(3):
            await store.start_attempt(claimed.rollout_id)
        page = await store.query_attempts(claimed.rollout_id)
        assert [attempt.sequence_id for attempt in page] == [1, 2, 3, 4]
        page = await store.query_attempts(claimed.rollout_id, sort_order="desc", limit=2, offset=1)
        assert [attempt.sequence_id for attempt in page] == [3, 2]
        assert page.total == 4

    async def test_unknown_ids_read_as_nothing(self, store: LightningStore):
        assert await store.get_rollout_by_id("ro-nothing") is None
        assert await store.get_latest_attempt("ro-nothing") is None
        assert list(await store.query_attempts("ro-nothing")) == []

    async def test_statistics_count_exactly(self, store: LightningStore):
        assert (await store.statistics()).get("total_rollouts") == 0
        claimed = await claim(store, worker_id="w")
        await store.start_attempt(claimed.rollout_id)
        await store.enqueue_rollout("x")
        await store.add_many_spans([span_of(claimed, i) for i in range(5)])
        await store.add_resources(named_resources())
        statistics = await store.statistics()
        assert {key: statistics.get(key) for key in COUNTS} == {
            "total_rollouts": 2,
            "total_attempts": 2,
            "total_spans": 5,
            "total_resources": 1,
            "total_workers": 1,
        }
        assert statistics.keys() <= LightningStoreStatistics.__annotations__.keys()
        assert statistics.get("name")
        assert 0 <= statistics.get("uptime", -1) < 3600

    async def test_times_are_those_of_the_clock(self, store: LightningStore):
        before = await store.now()
        rollout = await store.enqueue_rollout("x")
        assert before - 1 <= rollout.start_time <= await store.now() + 1, "a second for rounding"


COUNTS = ("total_rollouts", "total_attempts", "total_spans", "total_resources", "total_workers")


class ResourceTests(StoreTests):
    """Snapshots of resources."""

    async def test_there_are_none_at_first(self, store: LightningStore):
        assert await store.get_latest_resources() is None
        assert await store.get_resources_by_id("rs-nothing") is None
        assert list(await store.query_resources()) == []

    async def test_a_snapshot_comes_back_whole_and_in_order(self, store: LightningStore):
        resources = named_resources()
        added = await store.add_resources(resources)
        assert added.version == 1
        assert added.create_time == added.update_time
        assert list(added.resources) == list(resources)
        read = await store.get_resources_by_id(added.resources_id)
        assert read is not None
        assert read == added
        assert list(read.resources) == list(resources)
        assert [type(r) for r in read.resources.values()] == [type(r) for r in resources.values()]

    async def test_a_snapshot_is_not_shared(self, store: LightningStore):
        resources = named_resources("before")
        added = await store.add_resources(resources)
        resources["prompt"].template = "after"  # pyright: ignore[reportAttributeAccessIssue]
        added.resources.clear()
        read = await store.get_resources_by_id(added.resources_id)
        assert read is not None
        assert read.resources["prompt"].template == "before"  # pyright: ignore[reportAttributeAccessIssue]

    async def test_an_update_replaces_and_counts(self, store: LightningStore):
        created = await store.update_resources("mine", named_resources())
        assert (created.resources_id, created.version) == ("mine", 1)
        updated = await store.update_resources(
            "mine", {"only": PromptTemplate(template="x", engine="f-string")}
        )
        assert updated.version == 2
        assert updated.create_time == created.create_time
        assert updated.update_time >= created.update_time
        assert list(updated.resources) == ["only"]

    async def test_the_latest_is_the_last_added_or_updated(self, store: LightningStore):
        first = await store.update_resources("first", named_resources())
        await store.add_resources(named_resources())
        latest = await store.get_latest_resources()
        assert latest is not None
        assert latest.resources_id != first.resources_id
        await store.update_resources("first", named_resources())
        latest = await store.get_latest_resources()
        assert latest is not None
        assert (latest.resources_id, latest.version) == ("first", 2)

    async def test_a_checkpoint_is_kept_and_never_the_latest(self, store: LightningStore):
        checkpoint = Checkpoint(state={"epoch": 3, "seen": [1, None]}, metrics={"reward": 0.5})
        await store.update_resources("run:before", {"checkpoint": checkpoint})
        assert await store.get_latest_resources() is None
        assert (await store.enqueue_rollout(1)).resources_id is None
        first = await store.update_resources("first", named_resources())
        for version in (2, 3):
            stored = await store.update_resources("run:before", {"checkpoint": checkpoint})
            assert stored.version == version
        await store.add_resources({"checkpoint": checkpoint})
        latest = await store.get_latest_resources()
        assert latest is not None
        assert latest.resources_id == first.resources_id
        assert (await store.enqueue_rollout(2)).resources_id == first.resources_id
        kept = await store.get_resources_by_id("run:before")
        assert kept is not None
        assert kept.resources == {"checkpoint": checkpoint}
        # What a search tries carries a checkpoint; others must not receive it as the latest.
        await store.update_resources("tried", {**named_resources(), "checkpoint": checkpoint})
        latest = await store.get_latest_resources()
        assert latest is not None
        assert latest.resources_id == first.resources_id

    async def test_a_swap_replaces_only_what_was_read(self, store: LightningStore):
        if not store.capabilities.get("compare_and_set"):
            with pytest.raises(NotImplementedError):
                await store.swap_resources("live", named_resources(), version=0)
            return
        one: NamedResources = {"only": PromptTemplate(template="one", engine="f-string")}
        two: NamedResources = {"only": PromptTemplate(template="two", engine="f-string")}
        assert await store.swap_resources("live", one, version=3) is None
        assert await store.get_resources_by_id("live") is None
        created = await store.swap_resources("live", one, version=0)
        assert created is not None
        assert created.version == 1
        assert await store.swap_resources("live", two, version=0) is None
        swapped = await store.swap_resources("live", two, version=1)
        assert swapped is not None
        assert swapped.version == 2
        assert await store.swap_resources("live", one, version=1) is None
        stored = await store.get_resources_by_id("live")
        assert stored is not None
        assert stored.resources == two

    async def test_of_many_swaps_of_one_version_one_succeeds(self, store: LightningStore):
        if not store.capabilities.get("compare_and_set"):
            pytest.skip("the store does not compare and set")
        swaps = [
            store.swap_resources(
                "live", {"only": PromptTemplate(template=str(n), engine="f-string")}, version=0
            )
            for n in range(8)
        ]
        done = [swapped for swapped in await asyncio.gather(*swaps) if swapped is not None]
        assert len(done) == 1
        stored = await store.get_resources_by_id("live")
        assert stored is not None
        assert stored.resources == done[0].resources

    async def test_snapshots_are_listed_and_filtered(self, store: LightningStore):
        for name in ("v0", "v1", "other"):
            await store.update_resources(name, named_resources())

        async def found(**options: Any) -> list[str]:
            return [update.resources_id for update in await store.query_resources(**options)]

        assert await found() == ["v0", "v1", "other"]
        assert await found(resources_id="v1") == ["v1"]
        assert await found(resources_id_contains="v") == ["v0", "v1"]
        assert await found(resources_id="v1", resources_id_contains="oth") == []
        assert await found(sort_by="resources_id") == ["other", "v0", "v1"]
        assert await found(sort_by="resources_id", sort_order="desc", limit=1) == ["v1"]

    async def test_a_type_this_process_does_not_know_survives(self, store: LightningStore):
        from agl_core.types import OpaqueResource

        novel = OpaqueResource.model_validate({"resource_type": "novel", "deep": {"a": [1, None]}})
        added = await store.add_resources({"x": novel})
        read = await store.get_resources_by_id(added.resources_id)
        assert read is not None
        assert read.resources["x"].model_dump() == novel.model_dump()


class WaitTests(StoreTests):
    """wait_for_rollouts."""

    async def test_finished_rollouts_return_at_once_in_the_order_asked(self, store: LightningStore):
        ids = [(await store.enqueue_rollout(i)).rollout_id for i in range(3)]
        for rollout_id in ids:
            await store.update_rollout(rollout_id, status="succeeded")
        start = time.monotonic()
        done = await store.wait_for_rollouts(rollout_ids=ids[::-1], timeout=30)
        assert [rollout.rollout_id for rollout in done] == ids[::-1]
        assert time.monotonic() - start < 2

    async def test_neither_start_nor_end_decides_the_order(self, store: LightningStore):
        ids = [(await store.enqueue_rollout(i)).rollout_id for i in range(5)]
        for index in (3, 0, 4, 1, 2):
            await store.update_rollout(ids[index], status="succeeded")
        asked = [ids[index] for index in (1, 4, 0, 2, 3)]
        done = await store.wait_for_rollouts(rollout_ids=asked, timeout=30)
        assert [rollout.rollout_id for rollout in done] == asked

    async def test_a_timeout_returns_what_is_finished(self, store: LightningStore):
        done_id = (await store.enqueue_rollout("done")).rollout_id
        open_id = (await store.enqueue_rollout("open")).rollout_id
        await store.update_rollout(done_id, status="cancelled")
        start = time.monotonic()
        done = await store.wait_for_rollouts(rollout_ids=[open_id, done_id], timeout=0.2)
        assert [rollout.rollout_id for rollout in done] == [done_id]
        assert 0.15 < time.monotonic() - start < 5

    @pytest.mark.parametrize("timeout", [0, -1])
    async def test_no_time_means_a_look(self, store: LightningStore, timeout: float):
        rollout = await store.enqueue_rollout("x")
        start = time.monotonic()
        ids = [rollout.rollout_id]
        assert list(await store.wait_for_rollouts(rollout_ids=ids, timeout=timeout)) == []
        assert time.monotonic() - start < 1

    async def test_it_wakes_on_the_change_itself(self, store: LightningStore):
        rollouts = [await store.enqueue_rollout(i) for i in range(3)]
        ids = [rollout.rollout_id for rollout in rollouts]
        waiting = [
            asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=ids, timeout=30))
            for _ in range(3)
        ]
        await asyncio.sleep(0.1)
        for rollout_id in ids:
            assert not any(task.done() for task in waiting)
            await store.update_rollout(rollout_id, status="succeeded")
        start = time.monotonic()
        for done in await asyncio.gather(*waiting):
            assert [rollout.status for rollout in done] == ["succeeded"] * 3
        assert time.monotonic() - start < 1

    async def test_unknown_ids_are_not_waited_for(self, store: LightningStore):
        await store.statistics()  # the first call connects
        start = time.monotonic()
        assert list(await store.wait_for_rollouts(rollout_ids=["ro-no"], timeout=None)) == []
        assert list(await store.wait_for_rollouts(rollout_ids=[], timeout=None)) == []
        assert time.monotonic() - start < 1

    async def test_a_rollout_that_was_finished_before_is_waited_for_again(
        self, store: LightningStore
    ):
        rollout = await store.enqueue_rollout("x")
        ids = [rollout.rollout_id]
        await store.update_rollout(rollout.rollout_id, status="failed")
        assert len(await store.wait_for_rollouts(rollout_ids=ids, timeout=5)) == 1
        await store.update_rollout(rollout.rollout_id, status="requeuing")
        assert list(await store.wait_for_rollouts(rollout_ids=ids, timeout=0.1)) == []
        waiting = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=ids, timeout=30))
        await asyncio.sleep(0.05)
        await store.update_rollout(rollout.rollout_id, status="succeeded")
        assert [r.status for r in await asyncio.wait_for(waiting, 10)] == ["succeeded"]

    async def test_a_wait_for_many_starts_over_for_one_that_is_tried_again(
        self, store: LightningStore
    ):
        first, second = [(await store.enqueue_rollout(i)).rollout_id for i in range(2)]
        waiting = asyncio.ensure_future(
            store.wait_for_rollouts(rollout_ids=[first, second], timeout=30)
        )
        await asyncio.sleep(0.05)
        await store.update_rollout(first, status="failed")
        await asyncio.sleep(0.05)
        await store.update_rollout(first, status="requeuing")
        await store.update_rollout(second, status="succeeded")
        await asyncio.wait({waiting}, timeout=0.1)
        assert not waiting.done()
        await store.update_rollout(first, status="succeeded")
        done = await asyncio.wait_for(waiting, 10)
        assert [rollout.status for rollout in done] == ["succeeded", "succeeded"]

    async def test_a_wait_can_be_cancelled(self, store: LightningStore):
        rollout = await store.enqueue_rollout("x")
        waiting = asyncio.ensure_future(
            store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=None)
        )
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await store.update_rollout(rollout.rollout_id, status="succeeded")


class EventTests(StoreTests):
    """events()."""

    @requires("events")
    async def test_every_change_is_an_event_in_order(self, store: LightningStore):
        seen: list[tuple[str, str | None]] = []
        ids: list[int] = []
        started = asyncio.Event()

        async def listen() -> None:
            events = store.events()
            next_event = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.05)
            started.set()
            while True:
                event = await next_event
                ids.append(event.event_id)
                seen.append((event.kind, event.status))
                if event.kind == "rollout" and event.status == "succeeded":
                    return
                next_event = asyncio.ensure_future(anext(events))

        listening = asyncio.ensure_future(listen())
        await started.wait()
        claimed = await claim(store, worker_id="w")
        await store.add_resources(named_resources())
        await store.add_span(span_of(claimed))
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        await asyncio.wait_for(listening, 20)
        rollouts = [status for kind, status in seen if kind == "rollout"]
        assert rollouts == ["queuing", "preparing", "running", "succeeded"]
        attempts = [status for kind, status in seen if kind == "attempt"]
        assert attempts[:2] == ["preparing", "running"]
        assert ("worker", "busy") in seen
        assert "resources" in [kind for kind, _ in seen]
        assert ids == sorted(set(ids))
