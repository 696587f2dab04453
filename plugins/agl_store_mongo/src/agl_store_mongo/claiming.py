"""The queue: rollouts that are queuing or requeuing, in the order of their positions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from pymongo import ASCENDING, ReturnDocument

from agl_core import lifecycle
from agl_core.ids import generate_id, new_attempt_id
from agl_core.lifecycle import Change
from agl_core.types import AttemptedRollout, RolloutConfig, attach_attempt
from agl_store_mongo.database import Database
from agl_store_mongo.documents import Document, attempt_fields, record_from, status_fields
from agl_store_mongo.feed import Feed
from agl_store_mongo.rollouts import Rollouts
from agl_store_mongo.workers import Workers

__all__ = ["Claiming"]


class Claiming:
    """Claims from the queue of a partition; each is one atomic write."""

    def __init__(
        self, database: Database, rollouts: Rollouts, workers: Workers, feed: Feed
    ) -> None:
        self._db = database
        self._rollouts = rollouts
        self._workers = workers
        self._feed = feed

    async def claim(
        self, limit: int, worker_id: str | None, key: str | None, *, note_idle: bool
    ) -> list[AttemptedRollout]:
        """Claim up to ``limit`` rollouts; with nothing to claim, note that the worker is idle."""
        token = key or generate_id(16)
        claimed = await self._claimed_under(token, limit) if key else []
        if not claimed:
            claimed = [item async for item in self._claim_heads(limit, worker_id, token)]
        if claimed:
            await self._rollouts.assign(claimed[-1], worker_id, dequeued=True)
        elif worker_id and note_idle:
            await self._workers.follow(
                worker_id,
                lambda worker: lifecycle.nothing_to_claim(worker_id, worker, now=time.time()),
            )
        return claimed

    async def _claim_heads(
        self, limit: int, worker_id: str | None, token: str
    ) -> AsyncIterator[AttemptedRollout]:
        for place in range(limit):
            item = await self._claim_head(worker_id, f"{token}/{place}")
            if item is None:
                return
            yield item

    async def _claim_head(self, worker_id: str | None, request: str) -> AttemptedRollout | None:
        # What the lifecycle makes of any queued rollout; only the ordinal depends on which it is.
        change = lifecycle.begin_attempt(
            _ANY_QUEUED,
            attempt_id=new_attempt_id(),
            sequence_id=0,
            now=time.time(),
            worker_id=worker_id,
        )
        assert change.rollout is not None
        assert change.attempt is not None
        fields = {
            **status_fields(change.rollout),
            "queue_position": None,
            "request": request,
            "release": None,
            f"attempts.{change.attempt.attempt_id}": attempt_fields(change.attempt),
        }
        document = await self._take_head(request, fields)
        if document is None:
            return None
        record = record_from(document)
        begun = Change(record.rollout, record.attempt(change.attempt.attempt_id))
        self._rollouts.tell(_ANY_QUEUED, begun, known=None)
        return attach_attempt(record.rollout, record.attempt("latest"))

    async def _take_head(self, request: str, fields: dict[str, Any]) -> Document | None:
        tries = 0

        async def take() -> Document | None:
            nonlocal tries
            tries += 1
            if tries > 1 and (taken := await self._taken_under(request)) is not None:
                return taken  # by the try before this one, whose reply was lost
            return await self._db.rollouts.find_one_and_update(
                self._db.queued(),
                {"$set": fields, "$inc": {"version": 1}},
                sort=[("queue_position", ASCENDING)],
                return_document=ReturnDocument.AFTER,
            )

        return await self._db.again(take)

    async def _taken_under(self, request: str) -> Document | None:
        return await self._db.rollouts.find_one(self._db.by(request=request))

    async def _claimed_under(self, token: str, limit: int) -> list[AttemptedRollout]:
        requests = [f"{token}/{number}" for number in range(max(limit, 0))]
        cursor = self._db.rollouts.find(self._db.by(request={"$in": requests}))
        found = {document["request"]: record_from(document) async for document in cursor}
        records = [found[request] for request in requests if request in found]
        return [attach_attempt(record.rollout, record.attempt("latest")) for record in records]

    async def give_back(self, claimed: Sequence[AttemptedRollout]) -> None:
        """Undo claims whose caller was cancelled before it could be told of them."""
        for item in reversed(claimed):
            record = await self._rollouts.find(item.rollout_id, light=True)
            if record is None or record.latest != item.attempt:
                continue  # somebody has already acted on it
            head = await self._db.rollouts.find_one(
                self._db.queued(), {"queue_position": 1}, sort=[("queue_position", ASCENDING)]
            )
            status = "queuing" if item.attempt.sequence_id == 1 else "requeuing"
            which = self._db.by(rollout_id=item.rollout_id, version=record.version)
            back = {
                "$set": {
                    "status": status,
                    "queue_position": head["queue_position"] - 1 if head else 0,
                    "request": None,
                },
                "$unset": {f"attempts.{item.attempt.attempt_id}": ""},
                "$inc": {"version": 1},
            }
            result = await self._db.rollouts.update_one(which, back)
            if result.matched_count:
                await self._workers.let_go(item.attempt)
                self._feed.tell("rollout", rollout_id=item.rollout_id, status=status)


_ANY_QUEUED: Final = lifecycle.new_rollout(
    rollout_id="",
    input=None,
    mode=None,
    resources_id=None,
    config=RolloutConfig(),
    metadata={},
    now=0.0,
)
