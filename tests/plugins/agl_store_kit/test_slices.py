"""Long work in slices: its results are those of one step, and other calls run meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_core.types import Worker
from agl_store_kit import (
    WorkerQuery,
    in_slices,
    run_query,
    run_query_in_slices,
    slices,
    sorted_in_slices,
)


@pytest.fixture(autouse=True, scope="module")
def short_slices() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "_SLICE", 3)
        patch.setattr(slices, "_RUN", 4)
        patch.setattr(slices, "_HELD_SECONDS", 0.0)
        yield


@given(st.lists(st.integers(0, 5), max_size=40), st.booleans())
def test_sorting_is_stable_in_both_directions(numbers: list[int], descending: bool):
    items = list(enumerate(numbers))

    def key(item: tuple[int, int]) -> int:
        return item[1]

    found = asyncio.run(sorted_in_slices(items, key, descending=descending))
    assert found == sorted(items, key=key, reverse=descending)


@given(st.lists(st.integers(), max_size=20), st.integers(1, 7))
def test_slices_make_one_list(numbers: list[int], size: int):
    found = asyncio.run(in_slices(lambda part: [each for each in part if each % 2], numbers, size))
    assert found == [each for each in numbers if each % 2]


workers = st.builds(
    Worker, worker_id=st.text("ab", max_size=3), status=st.sampled_from(["idle", "busy", "unknown"])
)


@given(
    st.lists(workers, max_size=30),
    st.sampled_from([None, "a", "b"]),
    st.none() | st.lists(st.sampled_from(["idle", "busy"])),
    st.sampled_from(["and", "or"]),
    st.sampled_from([None, "worker_id", "status"]),
    st.sampled_from(["asc", "desc"]),
    st.sampled_from([(-1, 0), (3, 2), (0, 0)]),
)
def test_a_query_in_slices_answers_like_one_in_one_step(
    records: list[Worker], part: Any, statuses: Any, logic: str, by: Any, order: str, page: Any
):
    query = WorkerQuery(
        worker_id_contains=part,
        status_in=statuses,
        filter_logic=logic,
        sort_by=by,
        sort_order=order,
        limit=page[0],
        offset=page[1],
    )
    found, total = asyncio.run(run_query_in_slices(records, query))
    assert (list(found), total) == (
        list(run_query(records, query)[0]),
        run_query(records, query)[1],
    )


async def test_other_calls_run_between_slices():
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await in_slices(lambda part: part, range(30), 3)
    counting.cancel()
    assert turns >= 9
