"""Lists read page by page although items before the page may be dropped meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from agl_core.types import PaginatedResult

__all__ = ["each_item", "next_page"]

T = TypeVar("T")

_PAGE: Final = 1000
"""Records of one query; a server's answer to it stays below a few megabytes."""


async def each_item(
    query: Callable[..., Awaitable[PaginatedResult[T]]],
    id_field: str,
    *,
    page_size: int = _PAGE,
    **options: Any,
) -> AsyncIterator[T]:
    """Yield what a query of a store finds, read page by page, each item once.

    Items may be dropped meanwhile, as a vacuum does, or cease to match: none of the others is left
    out. An item that comes meanwhile may be left out.

    Args:
        query: A list query of a store, such as ``store.query_rollouts``.
        id_field: The field that items are told apart by, such as ``rollout_id``.
        page_size: Items of a page.
        options: Filters and order of the query.
    """
    known: set[int] = set()
    end, is_last = 0, False

    async def read(limit: int, offset: int) -> PaginatedResult[T]:
        return await query(limit=limit, offset=offset, **options)

    while not is_last:
        items, _, end, is_last = await next_page(read, attrgetter(id_field), known, page_size, end)
        for item in items:
            yield item


class NextPage(NamedTuple, Generic[T]):
    """A page that goes on where the one before it ended."""

    items: list[T]
    """Its items that were not read before."""
    total: int
    """The number of matches, as the page says."""
    end: int
    """Place of the item after the page."""
    is_last: bool
    """Whether nothing follows."""


async def next_page(
    read: Callable[[int, int], Awaitable[PaginatedResult[T]]],
    name: Callable[[T], Hashable],
    known: set[int],
    size: int,
    end: int,
) -> NextPage[T]:
    """Read the items that follow those read so far.

    Items that are dropped move those behind them to earlier places. So a page has an item that is
    known: what is before it was read, too. If it has none, the page before it is read.

    Args:
        read: Reads a page, given limit and offset.
        name: Returns the id of an item, which stays when the item changes.
        known: Hashes of the names of all items read so far; those of the page are added.
        size: How many items to read that are not known.
        end: Place of the item after those read so far.
    """
    back = 1
    while True:
        start = max(0, end - back)
        limit = size + min(1, end - start)
        page = await read(limit, start)
        hashes = [hash(name(item)) for item in page.items]
        places = (place for place, one in enumerate(hashes) if one in known)
        first = next(places, 0 if start == 0 else None)
        if first is not None:
            rest = zip(page.items[first:], hashes[first:], strict=True)
            new = [item for item, one in rest if one not in known]
            known.update(hashes[first:])
            return NextPage(new, page.total, start + len(hashes), len(hashes) < limit)
        back = max(size, 2 * back)
