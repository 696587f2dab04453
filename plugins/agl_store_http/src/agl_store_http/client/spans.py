"""The writing of spans: batches, and what to do where a server has none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pydantic_core import from_json, to_json

from agl_core.store import EncodedSpan
from agl_store_http.client.queries import ClientQueries
from agl_store_http.client.transport import Reply, RequestFailed, Transport

__all__ = ["ClientSpans"]

_MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Well below what a server takes; a larger batch goes in several requests."""


class ClientSpans(ClientQueries):
    """Spans to the server, in batches if it knows them.

    Args:
        transport: How the server is reached.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._has_batches = True

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        """Store spans; a batch of more than 16 MiB is several steps instead of one."""
        stored: list[EncodedSpan] = []
        for batch in _batches(spans):
            if len(batch) > 1 and self._has_batches:
                kept = await self._add_batch(batch)
                if kept is not None:
                    stored += kept
                    continue
            for span in batch:
                reply = await self.call("POST", "/spans", span.payload)
                if reply.body != b"null" or await self._came_before(reply, span):
                    stored.append(span)
        return stored

    async def _add_batch(self, batch: Sequence[EncodedSpan]) -> list[EncodedSpan] | None:
        body = b'{"spans":[%b]}' % b",".join([span.payload for span in batch])
        try:
            reply = await self._transport.call("POST", "/spans/batch", body)
        except RequestFailed as error:
            if error.is_missing_route:
                self._has_batches = False
                return None
            raise error.as_store_error() from None
        duplicates = set[int](from_json(reply.body)["duplicates"])
        return [
            span
            for position, span in enumerate(batch)
            if position not in duplicates or await self._came_before(reply, span)
        ]

    async def _came_before(self, reply: Reply, span: EncodedSpan) -> bool:
        """Whether a span that the server calls a duplicate is one that this very call stored.

        That happens when the reply to an earlier try was lost. A different span under the same key
        is a duplicate all the same.
        """
        if reply.tries == 1:
            return False
        page = await self.query_spans(span.rollout_id, span.attempt_id, span_id=span.span_id)
        return any(stored == span.decode() for stored in page.items)

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        asked = [
            {"rollout_id": rollout_id, "attempt_id": attempt_id}
            for rollout_id, attempt_id in rollout_attempt_ids
        ]
        if len(asked) > 1 and self._has_batches:
            try:
                reply = await self._transport.call(
                    "POST", "/spans/next/batch", to_json({"ids": asked})
                )
                return from_json(reply.body)["sequence_ids"]
            except RequestFailed as error:
                if not error.is_missing_route:
                    raise error.as_store_error() from None
                self._has_batches = False
        numbers: list[int] = []
        for ids in asked:
            reply = await self.call("POST", "/spans/next", to_json(ids))
            numbers.append(from_json(reply.body)["sequence_id"])
        return numbers


def _batches(spans: Sequence[EncodedSpan]) -> Iterator[Sequence[EncodedSpan]]:
    start = size = 0
    for position, span in enumerate(spans):
        size += len(span.payload)
        if size > _MAX_BATCH_BYTES and position > start:
            yield spans[start:position]
            start, size = position, len(span.payload)
    if start < len(spans):
        yield spans[start:]
