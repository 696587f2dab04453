"""Spans to the server: in batches, and one by one where a server has no batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json, to_json

from agl_core.store import EncodedSpan
from agl_store_http.client.codecs import MAX_BATCH
from agl_store_http.client.joining import JoinedCalls
from agl_store_http.client.transport import Reply, RequestFailed

if TYPE_CHECKING:
    from agl_store_http.client.client import LightningStoreClient

__all__ = ["SpanSender"]

_MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Well below what a server takes; a larger batch goes in several requests."""


class SpanSender:
    """Sends spans and draws sequence ids in batches, unless the server has no routes for them.

    The reference's servers have none.

    Args:
        client: Sends the requests.
    """

    def __init__(self, client: LightningStoreClient) -> None:
        self._client = client
        self._has_batches = True
        self._joined_draws = JoinedCalls(self._draw_sequence_ids)
        self._joined_spans = JoinedCalls(self._store, self._store_again)

    async def store(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        """Store spans; return those that were not stored before."""
        return [span for span in await self._joined_spans(spans) if span is not None]

    async def _store_again(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan | None]:
        return await self._store(spans, again=True)

    async def _store(
        self, spans: Sequence[EncodedSpan], *, again: bool = False
    ) -> Sequence[EncodedSpan | None]:
        """Store spans; return each that was not stored before, and None for the others.

        Args:
            spans: The spans.
            again: Whether some may have been stored by requests before, of which a later one
                failed.
        """
        stored: list[EncodedSpan | None] = []
        for batch in _batches(spans):
            reply = await self._batch("/spans/batch", _body(batch)) if len(batch) > 1 else None
            if reply is not None:
                duplicates = set[int](from_json(reply.body)["duplicates"])
                for position, span in enumerate(batch):
                    is_new = position not in duplicates or await self._is_own(reply, span, again)
                    stored.append(span if is_new else None)
                continue
            for span in batch:
                reply = await self._client.call("POST", "/spans", span.payload)
                is_new = reply.body != b"null" or await self._is_own(reply, span, again)
                stored.append(span if is_new else None)
        return stored

    async def take_in(self, spans: Sequence[EncodedSpan]) -> None:
        """Store spans that keep what the server of their store wrote into them."""
        for batch in _batches(spans):
            await self._client.request("POST", "/spans/import", _body(batch))

    async def draw_sequence_ids(self, attempts: Sequence[tuple[str, str]]) -> Sequence[int]:
        """Draw a sequence id for each pair of a rollout id and an attempt id."""
        return await self._joined_draws(attempts)

    async def _draw_sequence_ids(self, attempts: Sequence[tuple[str, str]]) -> Sequence[int]:
        requests: list[dict[str, Any]] = [
            {"rollout_id": rollout_id, "attempt_id": attempt_id}
            for rollout_id, attempt_id in attempts
        ]
        numbers: list[int] = []
        for start in range(0, len(requests) if len(requests) > 1 else 0, MAX_BATCH):
            batch = requests[start : start + MAX_BATCH]
            reply = await self._batch("/spans/next/batch", to_json({"ids": batch}))
            if reply is None:
                break
            numbers += from_json(reply.body)["sequence_ids"]
        for request in requests[len(numbers) :]:
            reply = await self._client.call("POST", "/spans/next", to_json(request))
            numbers.append(from_json(reply.body)["sequence_id"])
        return numbers

    async def _batch(self, path: str, body: bytes) -> Reply | None:
        """Send a batch; None if the server has no batches."""
        if self._has_batches:
            try:
                return await self._client.request("POST", path, body)
            except RequestFailed as error:
                if not error.is_missing_route:
                    raise error.as_store_error() from None
                self._has_batches = False
        return None

    async def _is_own(self, reply: Reply, span: EncodedSpan, again: bool) -> bool:
        """Tell whether a span that the server calls a duplicate was stored by this very call.

        That happens when the reply to an earlier try was lost. A different span under the same key
        is a duplicate all the same.
        """
        if reply.tries == 1 and not again:
            return False
        page = await self._client.query_spans(
            span.rollout_id, span.attempt_id, span_id=span.span_id
        )
        return any(stored == span.decode() for stored in page.items)


def _body(spans: Sequence[EncodedSpan]) -> bytes:
    return b'{"spans":[%b]}' % b",".join([span.payload for span in spans])


def _batches(spans: Sequence[EncodedSpan]) -> Iterator[Sequence[EncodedSpan]]:
    start = size = 0
    for position, span in enumerate(spans):
        size += len(span.payload)
        full = size > _MAX_BATCH_BYTES or position - start == MAX_BATCH
        if full and position > start:
            yield spans[start:position]
            start, size = position, len(span.payload)
    if start < len(spans):
        yield spans[start:]
