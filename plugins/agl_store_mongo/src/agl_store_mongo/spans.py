"""Spans: one document each, a batch in one write; and the span counters of the rollouts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agl_core.errors import AttemptEndedError
from agl_core.store import EncodedSpan
from agl_store_kit import (
    HIGHEST_COUNTED_SEQUENCE_ID,
    Decide,
    RolloutState,
    attempt_not_found,
    rollout_not_found,
)
from agl_store_kit.lifecycle import Change
from agl_store_mongo.database import Database
from agl_store_mongo.documents import Record, span_document
from agl_store_mongo.rollouts import Rollouts

__all__ = ["Spans"]


def _is_half_written(record: Record, state: RolloutState, change: Change | None) -> bool:
    """Return whether spans may be stored whose rollout was not written after them.

    The connection may have broken, or the process died, between the two writes.
    """
    attempt = state.attempt
    if change is None or attempt is None:
        return False
    lacks_reward = change.reward is not None and state.is_latest and record.reward is None
    return attempt.status == "preparing" or lacks_reward


class Spans:
    """The spans of a partition."""

    def __init__(self, database: Database, rollouts: Rollouts) -> None:
        self._db = database
        self._rollouts = rollouts

    async def append(self, spans: Sequence[EncodedSpan], arrived: Decide) -> list[EncodedSpan]:
        """Store spans; see :meth:`agl_store_kit.StorageBackend.append_spans`."""
        records = await self._records_of(spans)
        by_key: dict[tuple[str, str, str], EncodedSpan] = {}
        for span in spans:
            by_key.setdefault((span.rollout_id, span.attempt_id, span.span_id), span)
        unique = list(by_key.values())
        half_written: set[tuple[str, str]] = set()
        for rollout_id, attempt_id in dict.fromkeys((s.rollout_id, s.attempt_id) for s in unique):
            record = records[rollout_id]
            state = record.state(attempt_id)
            change = arrived(state)  # before the first write, as it may raise
            if _is_half_written(record, state, change):
                half_written.add((rollout_id, attempt_id))
        stored = await self._insert(unique, await self._draw_ordinals(spans, unique))
        try:
            written = ((span.rollout_id, span.attempt_id) for span in stored)
            for rollout_id, attempt_id in dict.fromkeys((*written, *half_written)):
                await self._rollouts.change(
                    rollout_id,
                    arrived,
                    attempt_id=attempt_id,
                    payload=False,
                    record=records.pop(rollout_id, None),  # up to date only for the first change
                    only_revived=True,
                )
        except AttemptEndedError:
            # It ended since it was read. A reader may have seen the spans for a moment.
            await self._remove(stored)
            raise
        return stored

    async def _remove(self, spans: Sequence[EncodedSpan]) -> None:
        for span in spans:
            key = self._db.by(
                rollout_id=span.rollout_id, attempt_id=span.attempt_id, span_id=span.span_id
            )
            await self._db.again(partial(self._db.spans.delete_one, key))

    async def _records_of(self, spans: Sequence[EncodedSpan]) -> dict[str, Record]:
        """Read the rollouts of spans, before anything is written.

        Raises:
            RolloutNotFoundError: One of them does not exist.
            AttemptNotFoundError: An attempt does not exist.
        """
        rollout_ids = list(dict.fromkeys(span.rollout_id for span in spans))
        records = await self._rollouts.find_without_input(rollout_ids)
        for span in spans:
            record = records.get(span.rollout_id)
            if record is None:
                raise rollout_not_found(span.rollout_id)
            if record.find(span.attempt_id) is None:
                raise attempt_not_found(span.rollout_id, span.attempt_id)
        return records

    async def _draw_ordinals(
        self, spans: Sequence[EncodedSpan], unique: Sequence[EncodedSpan]
    ) -> dict[str, int]:
        """Raise the rollouts' sequence ids; return the first ordinal of a block for each."""
        highest: dict[str, int] = {}
        for span in spans:
            known, number = highest.get(span.rollout_id, 0), span.sequence_id
            counts = number <= HIGHEST_COUNTED_SEQUENCE_ID
            highest[span.rollout_id] = max(known, number) if counts else known
        numbers = Counter(span.rollout_id for span in unique)
        counters = await self._update_counters(
            {
                rollout_id: {"$max": {"last": last}, "$inc": {"spans": numbers[rollout_id]}}
                for rollout_id, last in highest.items()
            }
        )
        return {
            rollout_id: counters[rollout_id]["spans"] - number
            for rollout_id, number in numbers.items()
        }

    async def _insert(
        self, spans: Sequence[EncodedSpan], ordinals: dict[str, int]
    ) -> list[EncodedSpan]:
        documents: list[dict[str, Any]] = []
        for span in spans:
            documents.append(span_document(span, ordinals[span.rollout_id]))
            ordinals[span.rollout_id] += 1
        taken = await self._db.insert(self._db.spans, documents)
        return [span for place, span in enumerate(spans) if place not in taken]

    async def draw(self, rollout_ids: Sequence[str]) -> list[int]:
        """Draw sequence ids; see :meth:`agl_store_kit.StorageBackend.draw_sequence_ids`."""
        numbers = Counter(rollout_ids)
        counters = await self._update_counters(
            {
                rollout_id: {"$inc": {"last": number, "spans": 0}}
                for rollout_id, number in numbers.items()
            }
        )
        last = {
            rollout_id: counters[rollout_id]["last"] - number
            for rollout_id, number in numbers.items()
        }
        drawn: list[int] = []
        for rollout_id in rollout_ids:
            last[rollout_id] += 1
            drawn.append(last[rollout_id])
        return drawn

    async def _update_counters(
        self, updates: Mapping[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Update the span counters of rollouts; return the results."""
        documents = await asyncio.gather(
            *(
                self._db.upsert(self._db.sequences, self._db.by(rollout_id=rollout_id), update)
                for rollout_id, update in updates.items()
            )
        )
        return dict(zip(updates, documents, strict=True))
