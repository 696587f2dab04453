"""Spans: one document each, all of a batch in one write; and the rollouts' span counters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agl_core import lifecycle
from agl_core.errors import RolloutNotFoundError
from agl_core.lifecycle import Change
from agl_core.store import EncodedSpan
from agl_core.types import Worker
from agl_store_mongo.database import Database
from agl_store_mongo.documents import Record, span_document
from agl_store_mongo.rollouts import Rollouts

__all__ = ["Spans"]

logger = logging.getLogger(__name__)

Key = tuple[str, str, str]


class Spans:
    """The spans of a partition."""

    def __init__(self, database: Database, rollouts: Rollouts) -> None:
        self._db = database
        self._rollouts = rollouts

    async def add(self, spans: Sequence[EncodedSpan]) -> list[EncodedSpan]:
        """Store spans; return those that were not stored before."""
        if not spans:
            return []
        records = await self._records_of(spans)
        fresh = list({_key(span): span for span in reversed(spans)}.values())[::-1]
        firsts = await self._draw_places(fresh)
        stored = await self._insert(fresh, firsts)
        kept = {id(span) for span in stored}
        for span in spans:
            if id(span) not in kept:
                logger.error(
                    "Span %s of rollout %s attempt %s is already stored; skipped",
                    span.span_id,
                    span.rollout_id,
                    span.attempt_id,
                )
        for rollout_id, attempt_id in dict.fromkeys((s.rollout_id, s.attempt_id) for s in stored):
            await self._heard_from(records.pop(rollout_id, None), rollout_id, attempt_id)
        return stored

    async def _records_of(self, spans: Sequence[EncodedSpan]) -> dict[str, Record]:
        """Read the rollouts that spans name, before anything is written.

        Raises:
            RolloutNotFoundError: One of them does not exist.
            AttemptNotFoundError: An attempt of one does not exist.
        """
        rollout_ids = list(dict.fromkeys(span.rollout_id for span in spans))
        records = await self._rollouts.find_many(rollout_ids, light=True)
        for span in spans:
            record = records.get(span.rollout_id)
            if record is None:
                raise RolloutNotFoundError(f"Rollout {span.rollout_id} not found")
            record.attempt(span.attempt_id)
        return records

    async def _draw_places(self, spans: Sequence[EncodedSpan]) -> dict[str, int]:
        """Draw each rollout's block of insertion ordinals; raise its sequence counter."""
        highest: dict[str, int] = {}
        for span in spans:
            highest[span.rollout_id] = max(highest.get(span.rollout_id, 0), span.sequence_id)
        numbers = Counter(span.rollout_id for span in spans)
        documents = await asyncio.gather(
            *(
                self._db.upsert(
                    self._db.sequences,
                    self._db.by(rollout_id=rollout_id),
                    {"$max": {"last": last}, "$inc": {"spans": numbers[rollout_id]}},
                )
                for rollout_id, last in highest.items()
            )
        )
        return {
            document["rollout_id"]: document["spans"] - numbers[document["rollout_id"]]
            for document in documents
        }

    async def _insert(
        self, spans: Sequence[EncodedSpan], following: dict[str, int]
    ) -> list[EncodedSpan]:
        documents: list[dict[str, Any]] = []
        for span in spans:
            documents.append(span_document(span, following[span.rollout_id]))
            following[span.rollout_id] += 1
        known = await self._db.insert(self._db.spans, documents)
        return [span for place, span in enumerate(spans) if place not in known]

    async def _heard_from(self, record: Record | None, rollout_id: str, attempt_id: str) -> None:
        now = time.time()

        def decide(record: Record, worker: Worker | None) -> Change:
            attempt = record.attempt(attempt_id)
            return lifecycle.span_arrived(
                record.rollout,
                attempt,
                is_latest=record.latest == attempt,
                worker=worker,
                now=now,
            )

        await self._rollouts.change(
            rollout_id, decide, attempt_id=attempt_id, record=record, light=True
        )

    async def draw(self, rollout_ids: Sequence[str]) -> list[int]:
        """Draw a sequence id for each rollout, in order."""
        numbers = Counter(rollout_ids)
        documents = await asyncio.gather(
            *(
                self._db.upsert(
                    self._db.sequences,
                    self._db.by(rollout_id=rollout_id),
                    {"$inc": {"last": number, "spans": 0}},
                )
                for rollout_id, number in numbers.items()
            )
        )
        following = {
            document["rollout_id"]: document["last"] - numbers[document["rollout_id"]]
            for document in documents
        }
        drawn: list[int] = []
        for rollout_id in rollout_ids:
            following[rollout_id] += 1
            drawn.append(following[rollout_id])
        return drawn


def _key(span: EncodedSpan) -> Key:
    return (span.rollout_id, span.attempt_id, span.span_id)
