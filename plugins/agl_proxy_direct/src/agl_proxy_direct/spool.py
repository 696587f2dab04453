"""A queue of spans between the proxy and its store, which writes them in batches.

::

    span = spool.reserve(rollout_id, attempt_id)   # the call starts: gets a sequence id
    ...
    span.submit(fields)                            # the call is over
    await spool.wait_stored(span, timeout)         # before the caller gets the last byte

Sequence ids are drawn and spans are stored in batches: a batch holds the spans that arrived while
the previous batch was sent. A single call waits for one round trip to the store; a thousand calls
share a few round trips.

While the store is down, the spool keeps its spans and retries. When it is full, the proxy refuses
new calls. If the store answers but fails for a batch, each rollout of the batch gets a lane of its
own, which retries apart from all others: a rollout whose spans fail holds up no other rollout.

Two kinds of spans are dropped, logged and counted: those that the store refuses, since their
attempt does not exist, and those for which it has failed for a while in which it took others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from agl_core.errors import InvalidArgumentError, NotFoundError
from agl_core.store import LightningStore
from agl_proxy_direct.pending_span import PendingSpan

__all__ = ["Spool"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_BATCH: Final = 512
"""Spans per call of the store: a call's fixed cost is small beside them."""
_LANE_SECONDS: Final = 600.0
"""How long a rollout whose spans were dropped stays apart from the others."""
_PROBE_ID: Final = "agl-proxy-probe"
"""Id of no rollout. Any answer to a question about it says that the store works."""
_REFUSALS: Final = (NotFoundError, InvalidArgumentError)


class _Lane:
    """The spans of a rollout for which the store failed, apart from those of other rollouts."""

    def __init__(self) -> None:
        self.spans: deque[PendingSpan] = deque()
        self.wake = asyncio.Event()
        self.failing_since: float | None = None
        self.error = ""
        self.task: asyncio.Task[None] | None = None

    def add(self, span: PendingSpan) -> None:
        self.spans.append(span)
        self.wake.set()


Step: TypeAlias = Callable[[list[PendingSpan]], Awaitable[None]]
"""A call of the store for some spans: drawing their ids, or adding them."""
Left: TypeAlias = Callable[[list[PendingSpan]], list[PendingSpan]]
"""Returns those spans for which a step is not done."""


class Spool:
    """Spans on their way from a proxy to its store. Belongs to one event loop.

    Args:
        store: Store of the spans.
        max_spans: Number of waiting spans at which the spool is full.
        max_bytes: Bytes of JSON at which the spool is full.
        give_up: Seconds after which spans are dropped for which the store fails while it takes
            others.

    Attributes:
        store: Store of the spans; may be replaced.
        stored_spans: Number of spans that the store accepted.
        refused_spans: Number of spans that were dropped.
    """

    def __init__(
        self,
        store: LightningStore,
        *,
        max_spans: int = 20_000,
        max_bytes: int = 512 * 2**20,
        give_up: float = 30.0,
    ) -> None:
        self.store = store
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._give_up = give_up
        self._waiting = 0
        self._bytes = 0
        self._to_draw: deque[PendingSpan] = deque()
        self._to_store: deque[PendingSpan] = deque()
        self._wake_draw = asyncio.Event()
        self._wake_store = asyncio.Event()
        self._unstored: dict[tuple[str, str], set[PendingSpan]] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._store_error: str | None = None
        self._failing_since = 0.0
        self._stored_at = 0.0
        self._lanes: dict[str, _Lane] = {}
        self._room: asyncio.Event = asyncio.Event()
        self.stored_spans = 0
        self.refused_spans = 0
        self._tasks = (
            asyncio.create_task(self._draw_all(), name="agl-proxy-draw"),
            asyncio.create_task(self._store_all(), name="agl-proxy-store"),
        )

    # -- used by calls ---------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of submitted spans that are not stored yet."""
        return self._waiting

    @property
    def store_error(self) -> str | None:
        """The last error of a store that is down, or else of a rollout whose spans fail."""
        if self._store_error is not None:
            return self._store_error
        failing = (lane.error for lane in self._lanes.values() if lane.failing_since is not None)
        return next(failing, None)

    def failing_for(self, rollout_id: str) -> float:
        """Return for how many seconds the store has been down, or failed for a rollout's spans."""
        now = time.monotonic()
        lane = self._lanes.get(rollout_id)
        since = now if lane is None or lane.failing_since is None else lane.failing_since
        return now - (since if self._store_error is None else min(since, self._failing_since))

    @property
    def keeps_objects(self) -> bool:
        """Whether the store keeps its data in this process, so that it needs no JSON of spans."""
        return not self.store.capabilities.get("zero_copy")

    def full(self) -> bool:
        return self._waiting >= self._max_spans or self._bytes >= self._max_bytes

    async def wait_for_room(self, timeout: float) -> None:
        """Wait until the spool is not full, for at most ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.full():
                    self._room.clear()
                    await self._room.wait()

    def reserve(self, rollout_id: str, attempt_id: str) -> PendingSpan:
        """Reserve the next place in an attempt's order; the sequence id is drawn later."""
        span = PendingSpan(self, rollout_id, attempt_id)
        lane = self._lanes.get(rollout_id)
        if lane is not None:
            lane.add(span)
        else:
            self._to_draw.append(span)
            self._wake_draw.set()
        return span

    def add(self, span: PendingSpan) -> None:
        self._waiting += 1
        self._bytes += span.size
        self._empty.clear()
        key = (span.rollout_id, span.attempt_id)
        unstored = self._unstored.get(key)
        if unstored is None:
            unstored = self._unstored[key] = set()
        unstored.add(span)
        if span.dropped:
            self._settle(span, stored=False)
        elif span.sequence_id is not None:
            self._queue_to_store(span)

    def _queue_to_store(self, span: PendingSpan) -> None:
        lane = self._lanes.get(span.rollout_id)
        if lane is not None:
            lane.add(span)
        else:
            self._to_store.append(span)
            self._wake_store.set()

    async def wait_stored(self, span: PendingSpan, timeout: float) -> bool:
        """Wait until a submitted span is in the store, for at most ``timeout`` seconds.

        Returns:
            Whether it is.
        """
        assert span.done is not None
        if not span.done.done():
            await asyncio.wait((span.done,), timeout=timeout)
        return span.done.done() and span.done.result()

    async def flush(self, rollout_id: str | None = None, attempt_id: str | None = None) -> None:
        """Wait until the spans submitted so far, of all attempts or of one, are in the store."""
        if rollout_id is None or attempt_id is None:
            pending = [span for group in self._unstored.values() for span in group]
        else:
            pending = list(self._unstored.get((rollout_id, attempt_id), ()))
        waits = [span.done for span in pending if span.done is not None]
        if waits:
            await asyncio.wait(waits)

    async def close(self, timeout: float) -> int:
        """Store the remaining spans, for at most ``timeout`` seconds, and stop.

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
                self._store_error or "no answer",
            )
        lanes = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in (*self._tasks, *lanes):
            task.cancel()
        await asyncio.gather(*self._tasks, *lanes, return_exceptions=True)
        return self._waiting

    # -- the queues of all rollouts --------------------------------------------------------------

    async def _draw_all(self) -> None:
        while True:
            await self._wake_draw.wait()
            self._wake_draw.clear()
            while self._to_draw:
                await self._do(_take(self._to_draw), self._draw, _undrawn)

    async def _store_all(self) -> None:
        while True:
            await self._wake_store.wait()
            self._wake_store.clear()
            while self._to_store:
                await self._do(_take(self._to_store), self._add, _unsettled)

    async def _do(self, batch: list[PendingSpan], step: Step, left: Left) -> None:
        """Do a step for a batch; give the rollouts lanes if it fails while the store works."""
        error = await self._until_up(batch, step)
        if error is None:
            return
        logger.warning("the store fails for a batch of %d spans: %.300r", len(batch), error)
        for span in left(batch):  # the others are done, or wait in the next step's queue
            lane = self._lanes.get(span.rollout_id)
            if lane is None:
                lane = self._lanes[span.rollout_id] = _Lane()
                lane.task = asyncio.create_task(self._serve_lane(span.rollout_id, lane))
            lane.add(span)

    # A step that failed is repeated, so both steps skip what is done.

    async def _draw(self, batch: list[PendingSpan]) -> None:
        batch = _undrawn(batch)
        if not batch:
            return
        ids = [(span.rollout_id, span.attempt_id) for span in batch]
        numbers = await self.store.get_many_span_sequence_ids(ids)
        for span, number in zip(batch, numbers, strict=True):
            span.sequence_id = number
            if span.submitted:
                self._queue_to_store(span)

    async def _add(self, batch: list[PendingSpan]) -> None:
        batch = _unsettled(batch)
        if not batch:
            return
        await self.store.add_encoded_spans([span.encode() for span in batch])
        self._stored_at = time.monotonic()
        self.stored_spans += len(batch)
        for span in batch:
            self._settle(span, stored=True)

    # -- lanes -----------------------------------------------------------------------------------

    async def _serve_lane(self, rollout_id: str, lane: _Lane) -> None:
        """Retry the spans of a rollout until it needs no lane."""
        tries = 0
        while lane.spans or lane.failing_since is not None or await self._stays(lane):
            lane.wake.clear()
            batch = _take(lane.spans)
            drawn = [span for span in batch if span.sequence_id is not None]
            to_draw = [span for span in batch if span.sequence_id is None]
            failed = await self._try_lane(to_draw, self._draw)
            failed += await self._try_lane(drawn, self._add)
            if not failed:
                tries, lane.failing_since = 0, None
                if not lane.spans:
                    break
                continue
            error = failed[0][1]
            lane.error = str(error) or type(error).__name__
            now = time.monotonic()
            if lane.failing_since is None:
                lane.failing_since = now
                logger.warning(
                    "the store does not accept spans of rollout %s; retrying apart from others: "
                    "%.300r",
                    rollout_id,
                    error,
                )
            if now - lane.failing_since > self._give_up and self._stored_at > lane.failing_since:
                self._drop([span for span, _ in failed], error)
                tries, lane.failing_since = 0, None
                continue
            lane.spans.extendleft(span for span, _ in reversed(failed))
            await asyncio.sleep(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
            tries += 1
        if self._lanes.get(rollout_id) is lane:
            del self._lanes[rollout_id]

    async def _stays(self, lane: _Lane) -> bool:
        """Wait for the next span of a rollout whose spans were dropped; false if none comes."""
        try:
            async with asyncio.timeout(_LANE_SECONDS):
                await lane.wake.wait()
        except TimeoutError:
            return bool(lane.spans)  # one that came in the last moment
        return True

    async def _try_lane(
        self, batch: list[PendingSpan], step: Step
    ) -> list[tuple[PendingSpan, Exception]]:
        """Do a step for a batch; return the spans for which the store fails, each by itself."""
        error = await self._until_up(batch, step) if batch else None
        if error is None:
            return []
        if len(batch) == 1:
            return [(batch[0], error)]
        middle = len(batch) // 2
        failed = await self._try_lane(batch[:middle], step)
        return failed + await self._try_lane(batch[middle:], step)

    # -- outcomes --------------------------------------------------------------------------------

    def _drop(self, spans: Sequence[PendingSpan], error: Exception) -> None:
        self.refused_spans += len(spans)
        logger.error(
            "the store refuses %d spans of model calls, which are dropped (%d so far): %.300s",
            len(spans),
            self.refused_spans,
            error,
        )
        for span in spans:
            span.dropped = True
            if span.submitted:
                self._settle(span, stored=False)

    def _settle(self, span: PendingSpan, *, stored: bool) -> None:
        assert span.done is not None
        if span.done.done():
            return
        self._waiting -= 1
        self._bytes -= span.size
        key = (span.rollout_id, span.attempt_id)
        group = self._unstored[key]
        group.discard(span)
        if not group:
            del self._unstored[key]
        span.done.set_result(stored)
        self._room.set()
        if self._waiting == 0:
            self._empty.set()

    # -- retries ---------------------------------------------------------------------------------

    async def _until_up(self, batch: list[PendingSpan], step: Step) -> Exception | None:
        """Do a step for a batch; while the store is down, wait and repeat.

        Returns:
            The error of a store that works but fails for this batch; None after success.
        """
        tries = 0
        while True:
            try:
                await self._without_refused(batch, step)
            except Exception as error:
                if await self._is_up():
                    self._note_up()
                    return error
                if self._store_error is None:
                    self._failing_since = time.monotonic()
                    logger.warning("the store does not accept spans; retrying: %.300r", error)
                self._store_error = str(error) or type(error).__name__
                await asyncio.sleep(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
                tries += 1
                continue
            self._note_up()
            return None

    async def _without_refused(self, batch: list[PendingSpan], step: Step) -> None:
        """Do a step for a batch, without the spans that the store refuses."""
        refused: list[PendingSpan] = []
        reason: Exception | None = None
        parts = [batch]
        while parts:
            part = parts.pop()
            try:
                await step(part)
            except _REFUSALS as error:
                if len(part) == 1:
                    refused += part
                    reason = error
                else:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
        if reason is not None:
            self._drop(refused, reason)

    async def _is_up(self) -> bool:
        try:
            await self.store.get_rollout_by_id(_PROBE_ID)
        except Exception as error:
            logger.debug("the store is down: %r", error)
            return False
        return True

    def _note_up(self) -> None:
        if self._store_error is not None:
            logger.info("the store accepts spans again; %d are waiting", self._waiting)
            self._store_error = None


def _undrawn(batch: list[PendingSpan]) -> list[PendingSpan]:
    return [span for span in batch if span.sequence_id is None and not span.dropped]


def _unsettled(batch: list[PendingSpan]) -> list[PendingSpan]:
    return [span for span in batch if span.done is not None and not span.done.done()]


def _take(queue: deque[PendingSpan]) -> list[PendingSpan]:
    return [queue.popleft() for _ in range(min(len(queue), _BATCH))]
