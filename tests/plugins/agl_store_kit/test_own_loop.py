"""The loop of a store's own, and the feed of notices, at their ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from agl_core.errors import StoreUnavailableError
from agl_store_kit import Notice, NoticeFeed, OwnLoop
from agl_store_kit.feed import _BACKLOG


def closed() -> Exception:
    return StoreUnavailableError("closed")


async def nothing() -> None:
    """Nothing is left to do."""


async def test_a_call_that_comes_while_the_loop_ends_is_refused():
    loop = OwnLoop("test", closed)
    ended, late = threading.Event(), threading.Event()

    async def finish_late() -> None:
        ended.set()
        await asyncio.to_thread(late.wait)

    closing = asyncio.create_task(loop.close(nothing, finish_late))
    await asyncio.to_thread(ended.wait)  # the tasks of calls were cancelled already
    loop._closed = False  # as if the call had looked before
    call = asyncio.create_task(loop.call(asyncio.Event().wait))
    await asyncio.sleep(0)
    late.set()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await asyncio.wait_for(call, 5)
    await closing


async def test_a_call_after_the_end_is_refused():
    loop = OwnLoop("test", closed)
    await loop.close(nothing, nothing)
    for looked_before in (False, True):
        loop._closed = not looked_before
        with pytest.raises(StoreUnavailableError, match="closed"):
            await loop.call(nothing)


class Feed(NoticeFeed):
    FAILURES = (OSError,)
    RETRY_SECONDS = 0.0

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.sent: list[Notice] = []
        self.fails = True

    async def send(self, notices: Sequence[Notice]) -> None:
        if self.fails:
            self.fails = False
            self.publish([notice(number) for number in range(_BACKLOG)])
            raise OSError("away")
        self.sent.extend(notices)

    async def receive(self) -> None:
        """Nothing comes."""


def notice(number: int) -> Notice:
    return Notice("rollout", float(number))


async def test_a_full_backlog_drops_the_oldest_notices(caplog: Any):
    feed = Feed()
    feed.publish([notice(-2), notice(-1)])
    assert feed._sending is not None
    await asyncio.wait_for(feed._sending, 10)
    assert [item.time for item in feed.sent] == list(range(_BACKLOG))
    assert "Could not tell other processes" in caplog.text
