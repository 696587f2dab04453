"""The span of a call on its way to the store, and its JSON."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from agl_core.genai import dumps
from agl_core.store import EncodedSpan, SpanParts

if TYPE_CHECKING:
    from agl_proxy_direct.spool import Spool

__all__ = ["PendingSpan"]


class _SubmittedSpan(NamedTuple):
    """A complete span, except for its sequence id."""

    fields: dict[str, Any]
    json: bytes | None
    """All fields as JSON; None if the store needs no JSON."""


def _without_surrogates(value: Any) -> Any:
    """Return JSON without lone surrogates, which no store can read back."""
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

    __slots__ = (
        "_spool",
        "_submitted",
        "attempt_id",
        "done",
        "dropped",
        "rollout_id",
        "sequence_id",
        "size",
    )

    def __init__(self, spool: Spool, rollout_id: str, attempt_id: str) -> None:
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.sequence_id: int | None = None
        self.size = 0
        self.dropped = False
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
        json = dumps(fields)
        if b"\\ud" in json:
            fields = _without_surrogates(fields)
            json = dumps(fields)
        if self._spool.keeps_objects:
            self._submitted = _SubmittedSpan(fields, None)
        else:
            # The bytes hold the attributes now; kept twice they would double the spool's memory.
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
            None if json is None else b'{"sequence_id":%d,' % self.sequence_id + json[1:],
            _parts(fields) if json is None else None,
        )


def _parts(fields: dict[str, Any]) -> SpanParts:
    """Return the content of a span for a store that keeps objects."""
    attributes: dict[str, Any] = fields["attributes"]
    resource = fields["resource"]
    return SpanParts(
        fields["status"]["status_code"],
        fields["status"]["description"],
        attributes,
        _context(fields["context"]),
        _context(fields["parent"]),
        resource["attributes"],
        resource["schema_url"],
        list in map(type, attributes.values()),
    )


def _context(fields: dict[str, Any] | None) -> tuple[Any, ...] | None:
    if fields is None:
        return None
    state = tuple(fields["trace_state"].items())
    return (fields["trace_id"], fields["span_id"], fields["is_remote"], state)
