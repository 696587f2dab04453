"""Joins the items of concurrent calls into one request.

A runner with many rollouts makes the same small call for each of them. A request costs more than
the items in it do.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from agl_core.errors import StoreUnavailableError
from agl_store_http.client.transport import StoreFailedError

__all__ = ["JoinedCalls"]

T = TypeVar("T")
R = TypeVar("R")


Send = Callable[[Sequence[T]], Awaitable[Sequence[R]]]

_FAILURES_OF_A_SERVER: Final = 2
"""Calls that fail one by one, after which the server is at fault and not the items of a call."""


class _Call(NamedTuple, Generic[T, R]):
    items: Sequence[T]
    results: asyncio.Future[Sequence[R]]


class _Lane(Generic[T, R]):
    """The calls of one event loop."""

    def __init__(self) -> None:
        self.waiting: list[_Call[T, R]] = []
        self.sender: asyncio.Task[None] | None = None


class JoinedCalls(Generic[T, R]):
    """Calls of which one at a time is on its way; those that come meanwhile go together.

    A call that finds no other is sent at once. Safe for any number of loops and threads; a pickled
    copy has no calls.

    Args:
        send: Sends items, and returns a result for each of them in order.
        send_again: Sends items of which some may have arrived before; ``send`` by default.
    """

    def __init__(self, send: Send[T, R], send_again: Send[T, R] | None = None) -> None:
        self._send = send
        self._send_again = send_again or send
        self._lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lane[T, R]]
        self._lanes = WeakKeyDictionary()

    def __reduce__(self) -> object:
        return JoinedCalls, (self._send, self._send_again)

    async def __call__(self, items: Sequence[T]) -> Sequence[R]:
        """Send items; return a result for each of them in order.

        Raises:
            Exception: What ``send`` raised for these items.
        """
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            lane = self._lanes[loop] = _Lane()
        call = _Call[T, R](items, loop.create_future())
        lane.waiting.append(call)
        if lane.sender is None:
            # An empty context: the request belongs to no single caller's trace.
            lane.sender = loop.create_task(self._serve(lane), context=contextvars.Context())
        return await call.results

    async def _serve(self, lane: _Lane[T, R]) -> None:
        try:
            while lane.waiting:
                calls, lane.waiting = lane.waiting, []
                await self._send_together([c for c in calls if not c.results.cancelled()])
        finally:
            lane.sender = None
            for call in lane.waiting:  # the loop is being closed
                call.results.cancel()

    async def _send_together(self, calls: Sequence[_Call[T, R]]) -> None:
        try:
            results = await self._send([item for call in calls for item in call.items])
        except asyncio.CancelledError:
            _cancel(calls)
            raise
        except Exception as error:
            if len(calls) == 1 or _is_lost(error):
                _fail(calls, error)
            else:
                await self._send_apart(calls)
            return
        start = 0
        for call in calls:
            end = start + len(call.items)
            if not call.results.done():
                call.results.set_result(results[start:end])
            start = end

    async def _send_apart(self, calls: Sequence[_Call[T, R]]) -> None:
        """Send the items of each call by themselves: those of one must not fail the others'."""
        failures = 0
        for place, call in enumerate(calls):
            try:
                results = await self._send_again(call.items)
            except asyncio.CancelledError:
                _cancel(calls[place:])
                raise
            except Exception as error:
                failures += isinstance(error, StoreUnavailableError)
                lost = _is_lost(error) or failures >= _FAILURES_OF_A_SERVER
                _fail(calls[place:] if lost else [call], error)
                if lost:
                    return
                continue
            if not call.results.done():
                call.results.set_result(results)


def _is_lost(error: Exception) -> bool:
    """Whether the server cannot be reached, rather than having failed with these items."""
    return isinstance(error, StoreUnavailableError) and not isinstance(error, StoreFailedError)


def _fail(calls: Sequence[_Call[T, R]], error: Exception) -> None:
    for call in calls:
        if not call.results.done():
            call.results.set_exception(error)


def _cancel(calls: Sequence[_Call[T, R]]) -> None:
    for call in calls:
        call.results.cancel()
