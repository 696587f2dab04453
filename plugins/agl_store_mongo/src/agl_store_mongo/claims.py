"""Claims: the head of the queue, the ``queuing`` or ``requeuing`` rollout of lowest position."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from pymongo import ASCENDING, ReturnDocument
from pymongo.errors import ConnectionFailure

from agl_core.ids import generate_id
from agl_core.types import Attempt, Rollout, RolloutConfig, evolve
from agl_store_kit import ClaimRequest, Notice, RolloutState, lifecycle, notices_of
from agl_store_kit.lifecycle import Change
from agl_store_mongo.database import Database, pause_after
from agl_store_mongo.documents import (
    Document,
    Record,
    attempt_fields,
    record_from,
    status_fields,
)
from agl_store_mongo.feed import Feed
from agl_store_mongo.rollouts import Rollouts
from agl_store_mongo.workers import Workers

__all__ = ["Claims"]

logger = logging.getLogger(__name__)

_AFTER_SLASH: Final = "0"
"""The character after a slash, so that a range has all texts with one at a place."""
_HEAD_FIRST: Final = [("queue_position", ASCENDING)]


class Claims:
    """Claims from the queue of a partition; each is one atomic write."""

    def __init__(
        self, database: Database, rollouts: Rollouts, workers: Workers, feed: Feed
    ) -> None:
        self._db = database
        self._rollouts = rollouts
        self._workers = workers
        self._feed = feed
        self._unanswered: list[str] = []
        """Claims that may have been made by calls that raised, and that nobody asks for again."""

    async def claim(self, request: ClaimRequest) -> list[tuple[Rollout, Attempt]]:
        """Claim rollouts; see :meth:`agl_store_kit.StorageBackend.claim`."""
        if self._unanswered:
            await self._return_unanswered()
        token = request.key or generate_id(16)
        claimed = await self._claimed_under(token) if request.key else []
        if not claimed:
            for place in range(request.limit):
                try:
                    record = await self._claim_head(request, place, f"{token}/{place}")
                except ConnectionFailure:
                    if request.key is None:
                        self._unanswered.append(f"{token}/{place}")
                    if not claimed:
                        raise
                    logger.warning("%d of %d claims were made", len(claimed), request.limit)
                    break
                if record is None:
                    break
                claimed.append(record)
        if claimed:
            try:
                await self._assign(request, len(claimed) - 1, claimed[-1])
            except ConnectionFailure as error:
                # The claims are made. A heartbeat names the worker's attempt anyway.
                logger.warning("the record of worker %s is late: %s", request.worker_id, error)
        elif request.worker_id and request.idle is not None:
            await self._workers.change(request.worker_id, request.idle)
        return [(record.rollout, record.attempts[-1]) for record in claimed]

    async def _claim_head(
        self, request: ClaimRequest, place: int, request_id: str
    ) -> Record | None:
        # Asked with any queued rollout, because the head is not known before it is taken.
        change = request.begin(RolloutState(_ANY_QUEUED, 0, None, None), place)
        assert change.rollout is not None
        assert change.attempt is not None
        fields = {
            **status_fields(change.rollout),
            "queue_position": None,
            "request": request_id,
            "release": None,
            "reward": None,
            "duration": None,
            f"attempts.{change.attempt.attempt_id}": attempt_fields(change.attempt),
        }
        document = await self._take_head(request_id, fields)
        if document is None:
            return None
        record = record_from(document)
        begun = Change(record.rollout, record.attempts[-1])
        state = RolloutState(record.rollout, len(record.attempts) - 1, None, None)
        self._feed.publish(notices_of(state, begun, time.time()))
        return record

    async def _take_head(self, request_id: str, fields: dict[str, Any]) -> Document | None:
        tries = 0

        async def take() -> Document | None:
            nonlocal tries
            tries += 1
            if tries > 1:  # the try before may have taken one, and its reply was lost
                taken = await self._db.rollouts.find_one(self._db.by(request=request_id))
                if taken is not None:
                    return taken
            return await self._db.rollouts.find_one_and_update(
                self._db.queued(),
                {"$set": fields, "$inc": {"version": 1}},
                sort=_HEAD_FIRST,
                return_document=ReturnDocument.AFTER,
            )

        return await self._db.again(take)

    async def _claimed_under(self, token: str) -> list[Record]:
        """Return what an earlier claim with this token has claimed and not given back since."""
        which = self._db.by(request={"$gte": f"{token}/", "$lt": f"{token}{_AFTER_SLASH}"})
        found = [document async for document in self._db.rollouts.find(which)]
        found.sort(key=lambda document: int(document["request"].rpartition("/")[2]))
        records = map(record_from, found)
        return [one for one in records if not lifecycle.is_returned_claim(one.attempts[-1])]

    async def _assign(self, request: ClaimRequest, place: int, record: Record) -> None:
        """Put the worker on the attempt that was claimed last. Idempotent."""
        attempt = record.attempts[-1]
        if attempt.status != "preparing":
            return  # claimed by an earlier call of the same key, and running since

        def begin(state: RolloutState) -> Change:
            change = request.begin(state, place)
            if change.worker is None:
                return change
            # Without a key each call of ``begin`` makes a new attempt id.
            worker = evolve(change.worker, {"current_attempt_id": attempt.attempt_id})
            return change._replace(worker=worker)

        state = RolloutState(record.rollout, len(record.attempts) - 1, None, None)
        await self._workers.follow(request.worker_id, state, begin)

    async def _return_unanswered(self) -> None:
        """Give back what was claimed by calls that lost the reply."""
        unanswered, self._unanswered = self._unanswered, []
        try:
            while unanswered:
                found = await self._db.rollouts.find_one(self._db.by(request=unanswered[-1]))
                if found is not None:
                    record = record_from(found)
                    await self.give_back([(record.rollout, record.attempts[-1])])
                unanswered.pop()
        finally:
            self._unanswered += unanswered

    async def give_back(self, claimed: Sequence[tuple[Rollout, Attempt]]) -> None:
        """Undo claims whose caller was cancelled before it got them."""
        for rollout, attempt in reversed(claimed):
            tries = 0
            while not await self._give_back(rollout.rollout_id, attempt):
                tries += 1
                await pause_after(tries)

    async def _give_back(self, rollout_id: str, attempt: Attempt) -> bool:
        """Undo a claim; return False after a lost race."""
        record = await self._rollouts.find(rollout_id, payload=False)
        if record is None or record.latest != attempt or record.rollout.status != "preparing":
            return True  # somebody has acted on it
        head = await self._db.rollouts.find_one(
            self._db.queued(), {"queue_position": 1}, sort=_HEAD_FIRST
        )
        status = lifecycle.status_before_claim(attempt)
        which = self._db.by(rollout_id=rollout_id, version=record.version)
        back = {
            "$set": {
                "status": status,
                "queue_position": head["queue_position"] - 1 if head else 0,
                "request": None,
            },
            "$unset": {f"attempts.{attempt.attempt_id}": ""},
            "$inc": {"version": 1},
        }
        result = await self._db.again(lambda: self._db.rollouts.update_one(which, back))
        if result.matched_count:
            await self._workers.free(attempt)
            notice = Notice("rollout", time.time(), rollout_id, status=status)
            self._feed.publish([notice])
        return result.matched_count == 1


_ANY_QUEUED: Final = lifecycle.new_rollout(
    rollout_id="",
    input=None,
    mode=None,
    resources_id=None,
    config=RolloutConfig(),
    metadata={},
    now=0.0,
)
