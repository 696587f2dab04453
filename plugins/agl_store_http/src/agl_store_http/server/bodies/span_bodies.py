"""Bodies of spans: parsed piece by piece, and encoded at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import ValidationError

from agl_core.semconv import PRIMARY_REWARD_VALUE
from agl_core.store import EncodedSpan, encode_span, finite_number
from agl_core.types import Span
from agl_serving import HTTPError, error_details, reject_non_finite
from agl_store_http.server.bodies.number_lists import NumberLists
from agl_store_http.server.bodies.schemas import MAX_BATCH, SpanBatch
from agl_store_http.server.bodies.weighing import check_weight, is_light
from agl_store_http.server.dependencies import JsonBody, current_call
from agl_store_http.server.writers import Writer
from agl_store_kit import Pauses

__all__ = ["MAX_SEQUENCE_ID", "BatchBody", "SpanBody"]

MAX_SEQUENCE_ID: Final = 2**63 - 1
"""Largest integer of a database column."""
_SMALL: Final = 128 * 1024
"""Bytes that are parsed in a few milliseconds, whatever they hold."""
_BEGINNING: Final = b'{"spans":['
_END: Final = b"]}"
_BETWEEN: Final = b',{"rollout_id":'
_spans: Final = TypeAdapter(list[Span])


class SpanBody(JsonBody):
    """Reads the JSON of one span into an :class:`~agl_core.store.EncodedSpan`."""

    def __init__(self) -> None:
        super().__init__(Span, keeps_infinity=True)

    async def parse(self, body: bytes) -> EncodedSpan:
        lists = NumberLists()
        if not is_light(body):
            body = await lists.cut(body)
        writer = await Writer.of(current_call.get())
        encoded = _encoded(await super().parse(body), lists, writer)
        return (await writer.finish((encoded,)))[0]


class BatchBody(JsonBody):
    """Reads the JSON of many spans into :class:`~agl_core.store.EncodedSpan` objects.

    A long batch is parsed in pieces, so that the loop is not held and no more than one piece is in
    memory as objects.

    Args:
        keeps_marks: Whether the spans keep what another server wrote into them.
    """

    def __init__(self, *, keeps_marks: bool = False) -> None:
        super().__init__(SpanBatch, keeps_infinity=True)
        self._keeps_marks = keeps_marks

    async def parse(self, body: bytes) -> Sequence[EncodedSpan]:
        lists = NumberLists()
        if not is_light(body):
            body = await lists.cut(body)
        writer = await Writer.of(current_call.get(), keeps_marks=self._keeps_marks)
        in_pieces = len(body) > _SMALL and body.startswith(_BEGINNING) and body.endswith(_END)
        parse = self._parse_pieces if in_pieces else self._parse_whole
        return await writer.finish(await parse(body, lists, writer))

    async def _parse_whole(
        self, body: bytes, lists: NumberLists, writer: Writer
    ) -> Sequence[EncodedSpan]:
        batch: SpanBatch = await super().parse(body)
        return [_encoded(span, lists, writer) for span in batch.spans]

    async def _parse_pieces(
        self, body: bytes, lists: NumberLists, writer: Writer
    ) -> Sequence[EncodedSpan]:
        encoded: list[EncodedSpan] = []
        pauses = Pauses()
        at, end = len(_BEGINNING), len(body) - len(_END)
        while at < end:
            # A quote after a brace begins a text, so this is between two objects. If it is not
            # between two spans of the batch, the piece is not valid.
            cut = body.find(_BETWEEN, at + _SMALL, end)
            cut = end if cut < 0 else cut
            piece = b"[%b]" % body[at:cut]
            await check_weight(piece)
            try:
                spans = _spans.validate_json(piece)
            except ValidationError as error:
                if is_light(body):  # the pieces may be wrong, and not the body
                    return await self._parse_whole(body, lists, writer)
                raise HTTPError(422, _details(error, len(encoded))) from None
            reject_non_finite(piece, overflow=False)
            if len(encoded) + len(spans) > MAX_BATCH:
                message = f"a batch may hold {MAX_BATCH} spans"
                raise HTTPError(
                    422, [{"type": "too_long", "loc": ["body", "spans"], "msg": message}]
                )
            for span in spans:
                encoded.append(_encoded(span, lists, writer))
                await pauses.take()
            at = cut + 1
        return encoded


def _details(error: ValidationError, before: int) -> list[dict[str, Any]]:
    """Return the details of an error in a piece that follows so many spans."""
    details = error_details(error, "body")
    for detail in details:
        where, *rest = detail["loc"]
        if rest and isinstance(rest[0], int):
            rest[0] += before
        detail["loc"] = [where, "spans", *rest]
    return details


def _encoded(span: Span, lists: NumberLists, writer: Writer) -> EncodedSpan:
    if not -MAX_SEQUENCE_ID <= span.sequence_id <= MAX_SEQUENCE_ID:
        raise HTTPError(422, f"sequence_id {span.sequence_id} does not fit in 64 bits")
    writer.mark(span.attributes)
    value = span.attributes.get(PRIMARY_REWARD_VALUE)
    if isinstance(value, int) and finite_number(value) is None:
        raise HTTPError(422, "a reward must be less than 1.8e308, the largest double")
    encoded = encode_span(span)
    return encoded.with_payload(lists.put_back(encoded.payload))
