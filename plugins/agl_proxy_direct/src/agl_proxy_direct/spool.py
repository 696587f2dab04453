"""A queue of spans between the proxy and its store, which writes them in batches.

::

    span = spool.reserve(rollout_id, attempt_id)   # the call starts: gets a sequence id
    ...
    span.submit(fields)                            # the call is over
    await spool.wait_stored(span, timeout)         # before the caller gets the last byte

Sequence ids are drawn and spans are stored in batches: a batch holds the spans that arrived while
the previous batch was sent. A single call waits for one round trip to the store; a thousand calls
share a few round trips.

No span is dropped. While the store fails, the spool keeps its spans and retries. When it is full,
the proxy refuses new calls. A span that the store will never take, since its attempt
does not exist, is logged and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

from agl_core.errors import InvalidArgumentError, NotFoundError
from agl_core.genai import dumps
from agl_core.store import EncodedSpan, LightningStore

__all__ = ["PendingSpan", "Spool"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_BATCH: Final = 512
_REFUSALS: Final = (NotFoundError, InvalidArgumentError)

T = TypeVar("T")


class _SubmittedSpan(NamedTuple):
    """A complete span, except for its sequence id."""

    fields: dict[str, Any]
    json: bytes
    """All fields as JSON."""


def _utf8_json(fields: dict[str, Any]) -> bytes:
    """Return JSON without lone surrogates, which no store can read back."""
    json = dumps(fields)
    if b"\\ud" not in json:
        return json
    return dumps(_without_surrogates(fields))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return {_without_surrogates(key): _without_surrogates(item) for key, item in pairs}
    return value


class PendingSpan:
    """The span of a call, from the call's start until the store has it."""

    __slots__ = ("_spool", "_submitted", "attempt_id", "done", "rollout_id", "sequence_id", "size")

    def __init__(self, spool: Spool, rollout_id: str, attempt_id: str) -> None:
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.sequence_id: int | None = None
        self.size = 0
        self.done: asyncio.Future[bool] | None = None
        self._spool = spool
        self._submitted: _SubmittedSpan | None = None

    @property
    def submitted(self) -> bool:
        return self._submitted is not None

    def submit(self, fields: dict[str, Any]) -> None:
        """Queue the span for the store, once.

        Args:
            fields: JSON fields of :class:`~agl_core.types.Span`, without the ids of rollout,
                attempt and sequence.
        """
        fields = {"rollout_id": self.rollout_id, "attempt_id": self.attempt_id, **fields}
        json = _utf8_json(fields)
        # The bytes hold the attributes now; keeping them twice would double the spool's memory.
        del fields["attributes"]
        self._submitted = _SubmittedSpan(fields, json)
        self.size = len(json)
        self.done = asyncio.get_running_loop().create_future()
        self._spool.add(self)

    def encode(self) -> EncodedSpan:
        """Return the span with its sequence id."""
        assert self._submitted is not None
        assert self.sequence_id is not None
        fields, json = self._submitted
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
    """Spans on their way from a proxy to its store. Belongs to one event loop.

    Args:
        store: Store of the spans.
        max_spans: Number of waiting spans at which the spool is full.
        max_bytes: Bytes of JSON at which the spool is full.

    Attributes:
        store: Store of the spans; may be replaced.
        stored_spans: Number of spans that the store accepted.
        refused_spans: Number of spans that the store refused permanently.
    """

    def __init__(
        self, store: LightningStore, *, max_spans: int = 20_000, max_bytes: int = 512 * 2**20
    ) -> None:
        self.store = store
        self._max_spans = max_spans
        self._max_bytes = max_bytes
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
        """The store's last error; None after the store has accepted spans again."""
        return self._store_error

    def failing_for(self) -> float:
        """Return for how many seconds every call of the store has failed."""
        return 0.0 if self._store_error is None else time.monotonic() - self._failing_since

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
        if span.sequence_id is not None:
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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return self._waiting

    # -- sequence ids ----------------------------------------------------------------------------

    async def _draw_all(self) -> None:
        while True:
            await self._wake_draw.wait()
            self._wake_draw.clear()
            while self._to_draw:
                batch = [self._to_draw.popleft() for _ in range(min(len(self._to_draw), _BATCH))]
                for span, number in zip(batch, await self._draw(batch), strict=True):
                    span.sequence_id = number
                    if span.submitted:
                        self._to_store.append(span)
                        self._wake_store.set()

    async def _draw(self, batch: list[PendingSpan]) -> Sequence[int]:
        ids = [(span.rollout_id, span.attempt_id) for span in batch]
        return await self._retry(lambda: self.store.get_many_span_sequence_ids(ids))

    # -- storing ---------------------------------------------------------------------------------

    async def _store_all(self) -> None:
        while True:
            await self._wake_store.wait()
            self._wake_store.clear()
            while self._to_store:
                batch = [self._to_store.popleft() for _ in range(min(len(self._to_store), _BATCH))]
                await self._store_batch(batch)

    async def _store_batch(self, batch: list[PendingSpan]) -> None:
        spans = [span.encode() for span in batch]
        try:
            await self._retry(lambda: self.store.add_encoded_spans(spans))
        except _REFUSALS as error:
            if len(batch) == 1:
                self.refused_spans += 1
                logger.error("the store refuses the span of a model call: %s", error)
                self._settle(batch[0], stored=False)
                return
            for span in batch:  # one unknown attempt must not fail the other spans
                await self._store_batch([span])
            return
        for span in batch:
            self.stored_spans += 1
            self._settle(span, stored=True)

    def _settle(self, span: PendingSpan, *, stored: bool) -> None:
        assert span.done is not None
        self._waiting -= 1
        self._bytes -= span.size
        key = (span.rollout_id, span.attempt_id)
        group = self._unstored[key]
        group.discard(span)
        if not group:
            del self._unstored[key]
        if not span.done.done():
            span.done.set_result(stored)
        self._room.set()
        if self._waiting == 0:
            self._empty.set()

    # -- retries ---------------------------------------------------------------------------------

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the store until it answers; errors about the arguments are raised at once."""
        tries = 0
        while True:
            try:
                result = await call()
            except _REFUSALS:
                raise
            except Exception as error:
                # Any other error may pass: the spans are kept, and the store may recover.
                if self._store_error is None:
                    self._failing_since = time.monotonic()
                    logger.warning("the store does not accept spans; retrying: %r", error)
                self._store_error = str(error) or type(error).__name__
                await asyncio.sleep(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
                tries += 1
                continue
            if self._store_error is not None:
                logger.info("the store accepts spans again; %d are waiting", self._waiting)
                self._store_error = None
            return result
