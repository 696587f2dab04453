"""Brings spans to the store, off the path of the calls that they are about.

::

    ticket = spool.open(rollout_id, attempt_id)    # when the call starts: its place in the order
    ...
    ticket.file(span)                              # when it is over
    await spool.stored(ticket)                     # before the caller gets its last byte

Ids are drawn and spans are stored in batches: whatever came while the last batch was under way is
the next one. So a lone call waits for one round trip, and a thousand calls share a few.

Nothing is dropped. While the store does not answer, the spool tries again, keeps what it has, and
refuses new calls once it holds as much as it may; what the store will never take (its attempt does
not exist) is logged and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from agl_core.errors import InvalidArgumentError, NotFoundError
from agl_core.genai import dumps
from agl_core.store.base import LightningStore
from agl_core.store.encoded import EncodedSpan

__all__ = ["Spool", "Ticket"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_BATCH: Final = 512
_REFUSALS: Final = (NotFoundError, InvalidArgumentError)

T = TypeVar("T")


class _Filed(NamedTuple):
    """A span that lacks nothing but its sequence id."""

    fields: dict[str, Any]
    json: bytes
    """Of all fields."""


class Ticket:
    """A call's place among the spans of its rollout."""

    __slots__ = ("_filed", "_spool", "attempt_id", "done", "rollout_id", "sequence_id", "size")

    def __init__(self, spool: Spool, rollout_id: str, attempt_id: str) -> None:
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.sequence_id: int | None = None
        self.size = 0
        self.done: asyncio.Future[bool] | None = None
        self._spool = spool
        self._filed: _Filed | None = None

    @property
    def filed(self) -> bool:
        return self._filed is not None

    def file(self, fields: dict[str, Any]) -> None:
        """Hand over the span, as the fields of :class:`~agl_core.types.Span` that JSON has.

        Once per ticket. The ids of rollout, attempt and sequence are the ticket's.
        """
        fields = {"rollout_id": self.rollout_id, "attempt_id": self.attempt_id, **fields}
        json = dumps(fields)
        # All but the numbers and names that the store looks at is in the bytes now.
        del fields["attributes"]
        self._filed = _Filed(fields, json)
        self.size = len(json)
        self.done = asyncio.get_running_loop().create_future()
        self._spool.take(self)

    def encode(self) -> EncodedSpan:
        """Return the span with its sequence id."""
        assert self._filed is not None
        assert self.sequence_id is not None
        fields, json = self._filed
        return EncodedSpan(
            self.rollout_id,
            self.attempt_id,
            self.sequence_id,
            fields["trace_id"],
            fields["span_id"],
            fields["parent_id"],
            fields["name"],
            fields["start_time"],
            fields["end_time"],
            b'{"sequence_id":%d,' % self.sequence_id + json[1:],
        )


class Spool:
    """The spans between a proxy and its store. Belongs to one event loop.

    Args:
        store: Where they go.
        max_spans: How many may wait; with more, new calls are refused.
        max_bytes: What they may hold together, roughly.

    Attributes:
        store: Where they go from now on.
        stored_spans: How many the store took.
        refused_spans: How many it will never take.
    """

    def __init__(
        self, store: LightningStore, *, max_spans: int = 20_000, max_bytes: int = 512 * 2**20
    ) -> None:
        self.store = store
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._waiting = 0
        self._bytes = 0
        self._to_draw: deque[Ticket] = deque()
        self._to_store: deque[Ticket] = deque()
        self._wake_draw = asyncio.Event()
        self._wake_store = asyncio.Event()
        self._unstored: dict[tuple[str, str], set[Ticket]] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._trouble: str | None = None
        self._trouble_since = 0.0
        self._room: asyncio.Event = asyncio.Event()
        self.stored_spans = 0
        self.refused_spans = 0
        self._tasks = (
            asyncio.create_task(self._draw_all(), name="agl-proxy-draw"),
            asyncio.create_task(self._store_all(), name="agl-proxy-store"),
        )

    # -- calls -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Spans filed and not yet stored."""
        return self._waiting

    @property
    def trouble(self) -> str | None:
        """What the store's last answer was, if it was an error."""
        return self._trouble

    def troubled_for(self) -> float:
        """Return for how many seconds the store has answered nothing but errors."""
        return 0.0 if self._trouble is None else time.monotonic() - self._trouble_since

    def full(self) -> bool:
        return self._waiting >= self._max_spans or self._bytes >= self._max_bytes

    async def room(self, timeout: float) -> None:
        """Wait until the spool is not full, for at most ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.full():
                    self._room.clear()
                    await self._room.wait()

    def open(self, rollout_id: str, attempt_id: str) -> Ticket:
        """Start to draw a sequence id."""
        ticket = Ticket(self, rollout_id, attempt_id)
        self._to_draw.append(ticket)
        self._wake_draw.set()
        return ticket

    def take(self, ticket: Ticket) -> None:
        self._waiting += 1
        self._bytes += ticket.size
        self._empty.clear()
        key = (ticket.rollout_id, ticket.attempt_id)
        unstored = self._unstored.get(key)
        if unstored is None:
            unstored = self._unstored[key] = set()
        unstored.add(ticket)
        if ticket.sequence_id is not None:
            self._to_store.append(ticket)
            self._wake_store.set()

    async def stored(self, ticket: Ticket, timeout: float) -> bool:
        """Wait until a filed span is in the store, for at most ``timeout`` seconds."""
        assert ticket.done is not None
        if not ticket.done.done():
            await asyncio.wait((ticket.done,), timeout=timeout)
        return ticket.done.done() and ticket.done.result()

    async def flush(self, rollout_id: str | None = None, attempt_id: str | None = None) -> None:
        """Wait until the spans filed so far, of all attempts or of one, are in the store."""
        if rollout_id is None or attempt_id is None:
            tickets = [ticket for group in self._unstored.values() for ticket in group]
        else:
            tickets = list(self._unstored.get((rollout_id, attempt_id), ()))
        waits = [ticket.done for ticket in tickets if ticket.done is not None]
        if waits:
            await asyncio.wait(waits)

    async def close(self, timeout: float) -> int:
        """Store what is left, for at most ``timeout`` seconds, and stop.

        Returns:
            How many spans could not be stored in time; they are lost.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            logger.error(
                "%d spans of model calls are lost: the store did not take them within %g s (%s)",
                self._waiting,
                timeout,
                self._trouble or "no answer",
            )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return self._waiting

    # -- drawing ids -----------------------------------------------------------------------------

    async def _draw_all(self) -> None:
        while True:
            await self._wake_draw.wait()
            self._wake_draw.clear()
            while self._to_draw:
                batch = [self._to_draw.popleft() for _ in range(min(len(self._to_draw), _BATCH))]
                for ticket, number in zip(batch, await self._draw(batch), strict=True):
                    ticket.sequence_id = number
                    if ticket.filed:
                        self._to_store.append(ticket)
                        self._wake_store.set()

    async def _draw(self, batch: list[Ticket]) -> Sequence[int]:
        ids = [(ticket.rollout_id, ticket.attempt_id) for ticket in batch]
        return await self._insist(lambda: self.store.get_many_span_sequence_ids(ids))

    # -- storing ---------------------------------------------------------------------------------

    async def _store_all(self) -> None:
        while True:
            await self._wake_store.wait()
            self._wake_store.clear()
            while self._to_store:
                batch = [self._to_store.popleft() for _ in range(min(len(self._to_store), _BATCH))]
                await self._store_batch(batch)

    async def _store_batch(self, batch: list[Ticket]) -> None:
        spans = [ticket.encode() for ticket in batch]
        try:
            await self._insist(lambda: self.store.add_encoded_spans(spans))
        except _REFUSALS as error:
            if len(batch) == 1:
                self.refused_spans += 1
                logger.error("the store refuses the span of a model call: %s", error)
                self._settle(batch[0], stored=False)
                return
            for ticket in batch:  # one unknown attempt must not take the others along
                await self._store_batch([ticket])
            return
        for ticket in batch:
            self.stored_spans += 1
            self._settle(ticket, stored=True)

    def _settle(self, ticket: Ticket, *, stored: bool) -> None:
        assert ticket.done is not None
        self._waiting -= 1
        self._bytes -= ticket.size
        key = (ticket.rollout_id, ticket.attempt_id)
        group = self._unstored[key]
        group.discard(ticket)
        if not group:
            del self._unstored[key]
        if not ticket.done.done():
            ticket.done.set_result(stored)
        self._room.set()
        if self._waiting == 0:
            self._empty.set()

    # -- a store that fails ----------------------------------------------------------------------

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the store answers; what it says about the arguments themselves is raised."""
        tries = 0
        while True:
            try:
                result = await call()
            except _REFUSALS:
                raise
            except Exception as error:
                # Whatever else a store fails with, the spans are still here and it may recover.
                if self._trouble is None:
                    self._trouble_since = time.monotonic()
                    logger.warning("the store does not take spans, trying again: %r", error)
                self._trouble = str(error) or type(error).__name__
                await asyncio.sleep(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
                tries += 1
                continue
            if self._trouble is not None:
                logger.info("the store takes spans again; %d wait", self._waiting)
                self._trouble = None
            return result
