"""Lists are read page by page, each item once, whatever is dropped meanwhile."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from agl_core.store import each_item
from agl_core.types import PaginatedResult


class Item(NamedTuple):
    name: int


class Shrinking:
    """A list that loses some of its items before each page that is read of it."""

    def __init__(self, chance: random.Random, size: int, most_lost: int) -> None:
        self.items = [Item(number) for number in range(size)]
        self.reads: list[int] = []
        self._chance, self._most_lost = chance, most_lost

    async def query(self, *, limit: int, offset: int, **options: str) -> PaginatedResult[Item]:
        assert options == {"sort_by": "name"}
        lost = self._chance.sample(
            range(len(self.items)),
            self._chance.randint(0, min(self._most_lost, len(self.items))),
        )
        self.items = [item for place, item in enumerate(self.items) if place not in lost]
        page = self.items[offset : offset + limit]
        self.reads.append(len(page))
        return PaginatedResult(items=page, limit=limit, offset=offset, total=len(self.items))


async def names(source: Shrinking) -> list[int]:
    items = each_item(source.query, "name", page_size=7, sort_by="name")
    return [item.name async for item in items]


@pytest.mark.parametrize("most_lost", [0, 1, 3, 40])
@pytest.mark.parametrize("seed", range(20))
async def test_no_item_that_stays_is_left_out_and_none_comes_twice(seed: int, most_lost: int):
    source = Shrinking(random.Random(seed), size=200, most_lost=most_lost)
    found = await names(source)
    assert set(found) >= {item.name for item in source.items}
    assert found == sorted(set(found))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100])
async def test_a_list_that_stays_is_read_once(size: int):
    source = Shrinking(random.Random(0), size, most_lost=0)
    found = await names(source)
    assert found == list(range(size))
    assert sum(source.reads) <= size + len(source.reads)  # one known item per page
