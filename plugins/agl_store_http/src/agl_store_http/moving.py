"""Lists read page by page although items before the page may be dropped meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Set as AbstractSet
from typing import Generic, NamedTuple, TypeVar

from agl_core.types import PaginatedResult

__all__ = ["NextPage", "next_page"]

T = TypeVar("T")


class NextPage(NamedTuple, Generic[T]):
    """A page that goes on where the one before it ended."""

    page: PaginatedResult[T]
    """The page as read; its first items may have been read before."""
    items: list[T]
    """Its items from the first that may be new."""
    end: int
    """Place of the item after the page."""
    is_last: bool
    """Whether nothing follows."""


async def next_page(
    read: Callable[[int, int], Awaitable[PaginatedResult[T]]],
    name: Callable[[T], Hashable],
    known: AbstractSet[int],
    size: int,
    end: int,
) -> NextPage[T]:
    """Read the items that follow those read so far.

    Items that are dropped move those behind them to earlier places. So a page has an item that is
    known: what is before it was read, too. If it has none, the page before it is read.

    Args:
        read: Reads a page, given limit and offset.
        name: What an item is told from the others by, also after it changed.
        known: Hashes of the names of all items read so far.
        size: How many items to read that are not known.
        end: Place of the item after those read so far.
    """
    back = 1
    while True:
        start = max(0, end - back)
        limit = size + min(1, end - start)
        page = await read(limit, start)
        items = list(page.items)
        places = (place for place, item in enumerate(items) if hash(name(item)) in known)
        first = next(places, 0 if start == 0 else None)
        if first is not None:
            return NextPage(page, items[first:], start + len(items), len(items) < limit)
        back = max(size, 2 * back)
