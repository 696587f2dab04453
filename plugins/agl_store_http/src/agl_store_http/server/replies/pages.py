"""Replies to list queries: a short page at once, a long one as a stream.

``limit=-1`` means everything, of whatever size. So a long list is read from the store in short
pages, and sent as fast as the client reads: neither the list nor its JSON is ever whole in memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from fastapi import Response

from agl_core.store import next_page
from agl_core.types import PaginatedResult
from agl_serving import JSON, HTTPError, Receive, Send, Stream, send_stream
from agl_store_http.server.dependencies import Call
from agl_store_http.server.replies.reply import Reply
from agl_store_kit import Pauses

__all__ = ["MAX_READ_ITEMS", "Listing", "is_long", "page_reply", "read_already"]

T = TypeVar("T")

MAX_READ_ITEMS: Final = 10_000
"""Most items of one reply to a token of scope ``read``."""
_SHORT: Final = 100
"""Items that are read and sent at once, whatever their size."""
_FIRST: Final = 25
"""Items of the first query: a screen is full, and their size tells how many to ask for next."""
_MOST: Final = 500
"""Items of a query, which holds a database's thread for some milliseconds."""
_CHUNK_BYTES: Final = 128 * 1024
"""How much of a long list is in memory."""


class Listing(Generic[T]):
    """One list query.

    Args:
        read: Reads a page, given limit and offset. While the list is read, items may be dropped,
            and new ones may come anywhere; the others must keep their order.
        encode: Returns the JSON of an item.
        keep: Whether an item of a page belongs to the list; None means all.
        kept: How many items belong to it; None if that is the total of a page, or not known.
        name: Returns the id of an item; by default that of the object, for a list that was read
            already.
    """

    def __init__(
        self,
        read: Callable[[int, int], Awaitable[PaginatedResult[T]]],
        encode: Callable[[T], bytes],
        keep: Callable[[T], bool] | None = None,
        kept: int | None = None,
        name: Callable[[T], Hashable] = id,
    ) -> None:
        self.read = read
        self.encode = encode
        self.keep = keep
        self.kept = kept
        self.name = name


def read_already(page: PaginatedResult[T]) -> Callable[[int, int], Awaitable[PaginatedResult[T]]]:
    """Return how to read a list whose items may move: it was read as a whole, from its offset."""
    offset = page.offset

    async def read(limit: int, start: int) -> PaginatedResult[T]:
        at = max(0, start) - max(0, offset)
        items = page.items[at : at + limit]
        return PaginatedResult(items=items, limit=limit, offset=start, total=page.total)

    return read


def is_long(limit: int) -> bool:
    """Return whether a list of so many items may be a stream."""
    return not 0 <= limit <= _SHORT


async def page_reply(call: Call, listing: Listing[Any], limit: int, offset: int) -> Response:
    """Return the reply to a list query.

    Args:
        call: The request.
        listing: What is asked for.
        limit: Items wanted; -1 is all.
        offset: Items to skip.

    Raises:
        HTTPError: 422, a token of scope ``read`` asks for too many.
    """
    if not is_long(limit):
        return await _whole(listing, await listing.read(limit, offset), limit, offset)
    first = await listing.read(_FIRST, offset if listing.keep is None else 0)
    total = first.total if listing.kept is None else listing.kept
    left = max(0, total - max(0, offset))
    wanted = left if limit < 0 else min(limit, left)
    if call.identity.scope == "read" and wanted > MAX_READ_ITEMS:
        raise HTTPError(
            422,
            f"{wanted} items are more than the {MAX_READ_ITEMS} that a token of scope read gets at "
            "a time; give a limit, and an offset for what follows",
        )
    if wanted <= len(first.items) and listing.keep is None:
        return await _whole(listing, first, limit, offset)
    return _LongPage(call, listing, first, limit, offset)


async def _whole(
    listing: Listing[Any], page: PaginatedResult[Any], limit: int, offset: int
) -> Reply:
    pauses, parts = Pauses(), list[bytes]()
    for item in page.items:
        parts.append(listing.encode(item))
        if pauses.due:  # items may be large
            await pauses.take()
    tail = b'],"limit":%d,"offset":%d,"total":%d}' % (limit, offset, page.total)
    if not parts:
        return Reply(b'{"items":[' + tail)
    # One join: a page of spans is large, and each further step would copy it once more.
    parts[0] = b'{"items":[' + parts[0]
    parts[-1] += tail
    return Reply(b",".join(parts))


class _LongPage(Response):
    """Streams a list. A failure ends the connection, so that no part looks whole."""

    def __init__(
        self,
        call: Call,
        listing: Listing[Any],
        first: PaginatedResult[Any],
        limit: int,
        offset: int,
    ) -> None:
        super().__init__()
        self._stopping = call.app.stopping
        self._chunks = _chunks(listing, first, limit, offset)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await send_stream(Stream(self._chunks, (JSON,)), send, receive, self._stopping)


async def _chunks(
    listing: Listing[Any], page: PaginatedResult[Any], limit: int, offset: int
) -> AsyncGenerator[bytes, None]:
    pauses = Pauses()
    skip = max(0, offset) if listing.keep is not None else 0
    begin = 0 if listing.keep is not None else max(0, offset)
    items, end, is_last = list(page.items), begin + len(page.items), len(page.items) < _FIRST
    sent, matching, total = 0, 0, page.total
    known = {hash(listing.name(item)) for item in items}
    separator, chunk, size = b'{"items":[', list[bytes](), 0
    read, bytes_read = 0, 0
    while True:
        for item in items:
            if listing.keep is not None and not listing.keep(item):
                continue
            part = listing.encode(item)
            read, bytes_read = read + 1, bytes_read + len(part)
            matching += 1
            if matching <= skip or 0 <= limit <= sent:
                continue
            sent += 1
            chunk += [separator, part]
            separator, size = b",", size + len(part)
            if size >= _CHUNK_BYTES:
                yield b"".join(chunk)
                chunk, size = [], 0
            await pauses.take()
        if is_last or (listing.keep is None and 0 <= limit <= sent):
            break
        asked = max(1, min(_MOST, _CHUNK_BYTES * (read + 1) // (bytes_read + 1)))
        items, total, end, is_last = await next_page(listing.read, listing.name, known, asked, end)
    head = b"" if separator == b"," else separator
    total = matching if listing.keep is not None else max(total, begin + matching)
    yield b"".join(chunk) + head + b'],"limit":%d,"offset":%d,"total":%d}' % (limit, offset, total)
