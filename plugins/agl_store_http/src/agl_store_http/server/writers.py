"""What a token of scope ``attempt`` may write, and what it cannot.

The agent's own code has such a token. The code may be wrong, or try to be rewarded for nothing. So
the server says in each of its spans who wrote it; numbers its spans, since the last reward counts;
and once the attempt has ended, takes spans that were under way for a minute, without their rewards.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic_core import to_json

from agl_core import semconv
from agl_core.errors import AttemptEndedError
from agl_core.store import EncodedSpan, LightningStore, innermost
from agl_core.types import Attempt, AttemptedRollout
from agl_store_http.server.dependencies import Call
from agl_store_kit import (
    EngineStore,
    has_other_reward,
    late_seconds,
    leave_out,
    lifecycle,
    reward_of,
    settle_rewards,
)

__all__ = ["IssuedIds", "Writer"]

LATE_SECONDS: Final = 60.0
"""How long after the end of its attempt a span may arrive."""
_MOST_ROLLOUTS: Final = 10_000
"""Rollouts whose highest number is remembered, 1 MB; the oldest go first."""


class IssuedIds:
    """The highest sequence id that this server has issued for each of many rollouts."""

    def __init__(self) -> None:
        self._highest: OrderedDict[str, int] = OrderedDict()

    def add(self, rollout_id: str, sequence_id: int) -> None:
        """Note an id that was issued."""
        self._highest[rollout_id] = max(sequence_id, self._highest.pop(rollout_id, 0))
        if len(self._highest) > _MOST_ROLLOUTS:
            self._highest.popitem(last=False)

    def highest(self, rollout_id: str) -> int:
        """Return the highest id issued; 0 if none is known."""
        return self._highest.get(rollout_id, 0)


class Writer:
    """Who writes the spans of one request.

    Attributes:
        is_attempt: Whether it is an attempt, by its token.
        is_late: Whether that attempt has ended.
        keeps_marks: Whether it brings spans of another store, with what a server wrote into them.
    """

    def __init__(self, call: Call, *, is_late: bool = False, keeps_marks: bool = False) -> None:
        self._call = call
        self.is_attempt = call.identity.scope == "attempt"
        self.is_late = is_late
        self.keeps_marks = keeps_marks and not self.is_attempt

    @classmethod
    async def of(cls, call: Call, *, keeps_marks: bool = False) -> Writer:
        """Return the writer of a request whose body has arrived."""
        if call.identity.scope != "attempt":
            return cls(call, keeps_marks=keeps_marks)
        return cls(call, is_late=await _has_ended(call))

    def mark(self, attributes: dict[str, Any]) -> None:
        """Write into a span's attributes who wrote it; only the server may say that."""
        if self.keeps_marks:
            return
        if self.is_attempt:
            attributes[semconv.WRITTEN_BY] = "attempt"
            if self.is_late:
                attributes[semconv.LATE] = True
                return
        elif semconv.WRITTEN_BY in attributes:
            del attributes[semconv.WRITTEN_BY]
        attributes.pop(semconv.LATE, None)

    async def finish(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        """Return the spans as they are to be stored, right before that.

        Raises:
            PermissionDeniedError: A span belongs to another attempt than the token.
            AttemptEndedError: It has ended meanwhile.
        """
        for span in spans:
            self._call.identity.require_attempt(span.rollout_id, span.attempt_id)
        if self.keeps_marks:
            await self._leave_out_outranked(settle_rewards(spans))
        if not self.is_attempt:
            return spans
        if await _has_ended(self._call) != self.is_late:
            raise AttemptEndedError("the attempt ended while the spans were read; send them again")
        # It may still end until they are stored.
        late_seconds.set(LATE_SECONDS if self.is_late else 0.0)
        spans = await self._numbered(spans)
        if rewarded := [span for span in spans if reward_of(span) is not None]:
            first = rewarded[0]
            await self._leave_out_outranked({(first.rollout_id, first.attempt_id): rewarded})
        return spans

    async def _numbered(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        """Give a new sequence id to each span whose own was not issued."""
        store, issued = self._call.store, self._call.app.issued
        rollout_id, attempt_id = self._call.identity.rollout_id, self._call.identity.attempt_id
        assert rollout_id is not None
        assert attempt_id is not None
        highest = issued.highest(rollout_id)
        unissued = sorted(
            (place for place, span in enumerate(spans) if span.sequence_id > highest),
            key=lambda place: spans[place].sequence_id,
        )
        if not unissued:
            return spans
        ids = await store.get_many_span_sequence_ids([(rollout_id, attempt_id)] * len(unissued))
        numbered = list(spans)
        for place, number in zip(unissued, ids, strict=True):
            numbered[place] = _with_number(spans[place], number)
            issued.add(rollout_id, number)
        return numbered

    async def _leave_out_outranked(self, own: Mapping[tuple[str, str], list[EncodedSpan]]) -> None:
        """Leave an agent's rewards out of the figures if its attempt has another one's."""
        for ids, rewarded in own.items():
            if has_other_reward(await self._call.store.query_encoded_spans(*ids)):
                leave_out(rewarded)


def _with_number(span: EncodedSpan, number: int) -> EncodedSpan:
    """Return a span with another sequence id; its JSON begins with its ids."""
    ids = b'{"rollout_id":%b,"attempt_id":%b,"sequence_id":' % (
        to_json(span.rollout_id),
        to_json(span.attempt_id),
    )
    old = ids + b"%d," % span.sequence_id
    assert span.payload.startswith(old)
    changed = span.with_payload(ids + b"%d," % number + span.payload[len(old) :])
    changed.sequence_id = number
    return changed


async def _has_ended(call: Call) -> bool:
    """Return whether the caller's attempt has ended."""
    who = call.identity
    assert who.rollout_id is not None
    assert who.attempt_id is not None
    found = await _find(call.store, who.rollout_id, who.attempt_id)
    if found is None:
        return False  # the store refuses it
    ended = lifecycle.ended_at(*found)
    is_engine = isinstance(innermost(call.store), EngineStore)  # it has the clock of its records
    if ended is not None and not is_engine and time.time() - ended > LATE_SECONDS:
        raise AttemptEndedError(f"attempt {who.attempt_id} has ended: no more spans")
    return ended is not None


async def _find(
    store: LightningStore, rollout_id: str, attempt_id: str
) -> tuple[AttemptedRollout, Attempt] | None:
    rollout = await store.get_rollout_by_id(rollout_id)
    if not isinstance(rollout, AttemptedRollout):
        return None
    if rollout.attempt.attempt_id == attempt_id:
        return rollout, rollout.attempt
    attempts = await store.query_attempts(rollout_id)
    earlier = next((each for each in attempts if each.attempt_id == attempt_id), None)
    return None if earlier is None else (rollout, earlier)
