"""The data structures of the memory store, compared with the simplest correct implementation."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agl_core.store import EncodedSpan
from agl_core.types import Rollout
from agl_store_kit import RolloutQuery, SpanQuery, run_query, slices
from agl_store_memory.index import RolloutIndexes
from agl_store_memory.sorted_list import SortedList
from agl_store_memory.spans import SpanLog

numbers = st.integers(0, 5000)


@settings(max_examples=60, deadline=None)
@given(st.sets(numbers), st.lists(numbers, max_size=60), st.integers(0, 50), st.booleans())
def test_a_sorted_list_is_sorted(start: set[int], moves: list[int], offset: int, descending: bool):
    ours, plain = SortedList(start), sorted(start)
    for number in moves:
        if number in plain:
            ours.remove(number)
            plain.remove(number)
        else:
            ours.add(number)
            plain = sorted([*plain, number])
    assert len(ours) == len(plain)
    expected = plain[::-1] if descending else plain
    assert list(ours.iterate(offset, descending=descending)) == expected[offset:]


def test_a_long_sorted_list_splits_and_empties():
    ours = SortedList[int]()
    for number in [*range(0, 6000, 2), *range(5999, 0, -2)]:
        ours.add(number)
    assert list(ours.iterate()) == list(range(6000))
    assert list(ours.iterate(5990)) == list(range(5990, 6000))
    for number in range(6000):
        ours.remove(number)
    assert (len(ours), list(ours.iterate())) == (0, [])
    with pytest.raises(ValueError, match="7 is not in the list"):
        ours.remove(7)
    ours.add(7)
    for missing in (6, 8):
        with pytest.raises(ValueError, match="not in the list"):
            ours.remove(missing)


STATUSES = ["queuing", "running", "failed"]
rollouts = st.builds(
    lambda status, end, mode: {"status": status, "end_time": end, "mode": mode},
    st.sampled_from(STATUSES),
    st.sampled_from([None, 1.0, 2.0, 3.0]),
    st.sampled_from([None, "train", "val"]),
)


def build(indexes: RolloutIndexes, entries: list[Any], by: str | None, order: str) -> None:
    building = indexes.begin(entries, sort_by=by, sort_order=order)
    asyncio.run(building.run())
    indexes.end(building)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(rollouts, max_size=12),
    st.lists(st.tuples(st.integers(0, 20), rollouts), max_size=10),
    st.sampled_from([None, "end_time", "mode", "status", "rollout_id"]),
    st.sampled_from(["asc", "desc"]),
    st.none() | st.lists(st.sampled_from(STATUSES)),
    st.sampled_from([(-1, 0), (3, 0), (2, 2), (0, 0), (5, 40)]),
)
def test_an_index_answers_like_a_scan(
    start: Any, changes: Any, by: Any, order: str, statuses: Any, cut: tuple[int, int]
):
    limit, offset = cut
    indexes = RolloutIndexes()
    entries: list[Any] = []

    def ask() -> tuple[list[Any], int]:
        page = indexes.page(statuses, sort_by=by, sort_order=order, limit=limit, offset=offset)
        if page is None:
            build(indexes, entries, by, order)
            page = indexes.page(statuses, sort_by=by, sort_order=order, limit=limit, offset=offset)
        assert page is not None
        return page

    def check() -> None:
        found, total = ask()
        query = RolloutQuery(
            status_in=statuses, sort_by=by, sort_order=order, limit=limit, offset=offset
        )
        scanned, count = run_query([entry.rollout for entry in entries], query)
        assert [entry.rollout for entry in found] == list(scanned)
        assert total == count

    check()
    for ordinal, fields in enumerate(start):
        rollout = Rollout(rollout_id=f"ro-{ordinal}", input=None, start_time=0.0, **fields)
        entries.append(SimpleNamespace(ordinal=ordinal, rollout=rollout))
        indexes.replace(entries[-1], None, rollout)
    check()
    for at, fields in changes:
        if entries:
            entry = entries[at % len(entries)]
            before, entry.rollout = entry.rollout, entry.rollout.model_copy(update=fields)
            indexes.replace(entry, before, entry.rollout)
    check()


def test_changes_while_an_index_is_built_are_in_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slices, "_HELD_SECONDS", 0.0)  # a turn after each slice
    indexes, entries = RolloutIndexes(), list[Any]()

    def add() -> None:
        name = f"ro-{len(entries)}"
        rollout = Rollout(rollout_id=name, input=None, start_time=-float(len(entries)))
        entries.append(SimpleNamespace(ordinal=len(entries), rollout=rollout))
        indexes.replace(entries[-1], None, rollout)

    def change(entry: Any) -> None:
        before, entry.rollout = entry.rollout, entry.rollout.model_copy(update={"start_time": 1.0})
        indexes.replace(entry, before, entry.rollout)

    async def run() -> None:
        for _ in range(2_000):
            add()
        building = indexes.begin(entries, sort_by="start_time", sort_order="asc")
        running = asyncio.create_task(building.run())
        await asyncio.sleep(0)
        assert not running.done()
        change(entries[0])
        change(entries[1_999])
        change(entries[0])
        add()
        await running
        indexes.end(building)

    asyncio.run(run())
    page = indexes.page(None, sort_by="start_time", sort_order="asc", limit=-1, offset=0)
    expected = [entries[2_000], *entries[1_998:0:-1], entries[0], entries[1_999]]
    assert page == (expected, 2_001)


def test_a_build_that_was_broken_off_leaves_nothing():
    indexes = RolloutIndexes()
    building = indexes.begin([], sort_by="mode", sort_order="asc")
    indexes.end(building)
    assert indexes.page(None, sort_by="mode", sort_order="asc", limit=1, offset=0) is None
    assert indexes._builds == []


def test_only_so_many_orders_are_kept():
    indexes = RolloutIndexes()
    fields = ["rollout_id", "start_time", "end_time", "mode", "status"]
    page: Any = {"limit": -1, "offset": 0}
    for field, order in itertools.product(fields, ["asc", "desc"]):
        build(indexes, [], field, order)
        assert indexes.page(None, sort_by=field, sort_order=order, **page) == ([], 0)
    assert len(indexes._indexes) == 8
    assert ("rollout_id", "asc") not in indexes._indexes
    assert ("status", "desc") in indexes._indexes


def test_a_count_builds_no_index():
    indexes = RolloutIndexes()
    rollout = Rollout(rollout_id="ro-1", input=None, start_time=0.0)
    entry: Any = SimpleNamespace(ordinal=0, rollout=rollout)
    indexes.replace(entry, None, rollout)
    found = indexes.page([rollout.status], sort_by=None, sort_order="asc", limit=0, offset=0)
    assert (found, indexes._indexes) == (([], 1), {})


def span(attempt_id: str, sequence_id: int, span_id: str) -> EncodedSpan:
    return EncodedSpan("r", attempt_id, sequence_id, "t", span_id, None, "n", None, None, b"{}")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6)), max_size=25))
def test_a_span_log_keeps_both_orders(arrivals: list[tuple[str, int]]):
    log = SpanLog()
    spans = [span(name, number, f"s{at}") for at, (name, number) in enumerate(arrivals)]
    for item in spans:
        assert log.add(item)
        assert not log.add(span(item.attempt_id, item.sequence_id, item.span_id))
    assert len(log) == len(spans)
    for scope in (None, "a", "b", "c", "nobody"):
        mine = [item for item in spans if scope in (None, item.attempt_id)]
        ordered = sorted(mine, key=lambda item: item.sequence_id)
        for sort_by, expected in ((None, mine), ("sequence_id", ordered)):
            query = SpanQuery(rollout_id="r", attempt_id=scope, sort_by=sort_by)
            page = log.find(query)
            assert page is not None
            found, total = page
            assert [id(item) for item in found] == [id(item) for item in expected]
            assert total == len(mine)


def test_a_span_is_found_by_its_id():
    log = SpanLog()
    one, two = span("a", 1, "s"), span("b", 2, "s")
    assert log.add(one)
    assert log.add(two)

    def found(span_id: str, attempt_id: str | None = None) -> Any:
        query = SpanQuery(rollout_id="r", attempt_id=attempt_id, span_id=span_id)
        page = log.find(query)
        assert page is not None
        return page[0]

    assert found("s") == [one, two]
    assert found("s", "b") == [two]
    assert found("s", "c") == found("x") == found("x", "a") == []
