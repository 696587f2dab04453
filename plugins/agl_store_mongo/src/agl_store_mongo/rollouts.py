"""What calls do to rollouts: read, ask the lifecycle, write what it says if nobody was faster.

Every change is one write to one document, and finds the version it was decided upon or is decided
anew. The worker's document follows in a second write (:mod:`agl_store_mongo.workers`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from agl_core import lifecycle
from agl_core.errors import RolloutNotFoundError
from agl_core.ids import generate_id, new_attempt_id
from agl_core.lifecycle import Change
from agl_core.types import (
    FINISHED_STATUSES,
    Attempt,
    AttemptedRollout,
    Rollout,
    Worker,
    attach_attempt,
)
from agl_store_mongo.database import Database
from agl_store_mongo.documents import (
    WITHOUT_INPUT,
    Record,
    attempt_fields,
    payload_fields,
    record_from,
    status_fields,
)
from agl_store_mongo.feed import Feed
from agl_store_mongo.keys import id_from
from agl_store_mongo.workers import Workers, release_of

__all__ = ["Rollouts"]

_RECENT: Final = 16
"""Changes of one rollout within which a lost reply is made up for."""

Decide = Callable[[Record, Worker | None], Change | None]


class Rollouts:
    """Rollouts, their attempts and the queue."""

    def __init__(self, database: Database, workers: Workers, feed: Feed) -> None:
        self._db = database
        self._workers = workers
        self._feed = feed

    # -- reading ---------------------------------------------------------------------------------

    async def find(self, rollout_id: str, *, light: bool = False) -> Record | None:
        """Return a rollout, without its input if it is not needed (``light``)."""
        document = await self._db.rollouts.find_one(
            self._db.by(rollout_id=rollout_id), WITHOUT_INPUT if light else None
        )
        return None if document is None else record_from(document)

    async def get(self, rollout_id: str, *, light: bool = False) -> Record:
        """Return a rollout.

        Raises:
            RolloutNotFoundError: There is none of this id.
        """
        record = await self.find(rollout_id, light=light)
        if record is None:
            raise RolloutNotFoundError(f"Rollout {rollout_id} not found")
        return record

    async def find_many(
        self, rollout_ids: Sequence[str], *, light: bool = False
    ) -> dict[str, Record]:
        """Return those rollouts that exist."""
        cursor = self._db.rollouts.find(
            self._db.by(rollout_id={"$in": list(rollout_ids)}), WITHOUT_INPUT if light else None
        )
        records = [record_from(document) async for document in cursor]
        return {record.rollout.rollout_id: record for record in records}

    # -- changing --------------------------------------------------------------------------------

    async def begin_attempt(
        self, rollout_id: str, worker_id: str | None, key: str | None
    ) -> AttemptedRollout:
        """Start an attempt outside the queue."""
        attempt_id = new_attempt_id() if key is None else id_from("at-", key, length=8)
        now = time.time()

        def decide(record: Record, worker: Worker | None) -> Change | None:
            if record.find(attempt_id) is not None:
                return None  # begun by an earlier try, or by an earlier call of the same key
            return lifecycle.begin_attempt(
                record.rollout,
                attempt_id=attempt_id,
                sequence_id=len(record.attempts) + 1,
                now=now,
                worker_id=worker_id,
            )

        rollout, attempt = await self.change(rollout_id, decide, attempt_id=attempt_id, alone=True)
        assert attempt is not None
        begun = attach_attempt(rollout, attempt)
        await self.assign(begun, worker_id)
        return begun

    async def assign(
        self, begun: AttemptedRollout, worker_id: str | None, *, dequeued: bool = False
    ) -> None:
        """Put a worker on the attempt that was begun for it. Idempotent."""
        rollout, attempt = begun, begun.attempt
        if attempt.status != "preparing":
            return  # begun by an earlier call of the same key, and under way since
        await self._workers.follow(
            worker_id,
            lambda worker: (
                lifecycle.begin_attempt(
                    rollout,
                    attempt_id=attempt.attempt_id,
                    sequence_id=attempt.sequence_id,
                    now=attempt.start_time,
                    worker_id=worker_id,
                    worker=worker,
                    dequeued=dequeued,
                ).worker
            ),
        )

    async def update(self, rollout_id: str, changes: dict[str, Any]) -> Rollout:
        """Write fields of a rollout; see :func:`agl_core.lifecycle.update_rollout`."""
        now = time.time()

        def decide(record: Record, worker: Worker | None) -> Change:
            return lifecycle.update_rollout(
                record.rollout, changes, attempt=record.latest, worker=worker, now=now
            )

        rollout, _ = await self.change(rollout_id, decide, payload=bool(set(changes) - {"status"}))
        return rollout

    async def update_attempt(
        self, rollout_id: str, attempt_id: str, changes: dict[str, Any]
    ) -> Attempt:
        """Write fields of an attempt; see :func:`agl_core.lifecycle.update_attempt`."""
        record = await self.get(rollout_id, light=True)
        attempt_id = record.attempt(attempt_id).attempt_id
        now = time.time()

        def decide(record: Record, worker: Worker | None) -> Change:
            attempt = record.attempt(attempt_id)
            return lifecycle.update_attempt(
                record.rollout,
                attempt,
                changes,
                is_latest=record.latest == attempt,
                worker=worker,
                now=now,
            )

        _, attempt = await self.change(
            rollout_id,
            decide,
            attempt_id=attempt_id,
            worker_id=changes.get("worker_id"),
            record=record,
            light=True,
        )
        assert attempt is not None
        return attempt

    async def return_claim(self, rollout_id: str, attempt_id: str) -> None:
        """Take back a claim that reached nobody; see the lifecycle's."""
        now = time.time()

        def decide(record: Record, worker: Worker | None) -> Change | None:
            attempt = record.attempt(attempt_id)
            change = lifecycle.return_claim(
                record.rollout,
                attempt,
                is_latest=record.latest == attempt,
                worker=worker,
                now=now,
            )
            return change if change.attempt else None

        await self.change(rollout_id, decide, attempt_id=attempt_id, light=True)

    async def change(
        self,
        rollout_id: str,
        decide: Decide,
        *,
        attempt_id: str = "latest",
        worker_id: str | None = None,
        payload: bool = False,
        record: Record | None = None,
        light: bool = False,
        alone: bool = False,
    ) -> tuple[Rollout, Attempt | None]:
        """Change a rollout as the lifecycle says, atomically, then the worker that is concerned.

        Args:
            rollout_id: The rollout.
            decide: Asks the lifecycle, for the rollout as it is and a worker as it is. It is called
                again whenever one of them has changed meanwhile; None changes nothing.
            attempt_id: The attempt concerned.
            worker_id: Worker concerned; by default the attempt's.
            payload: Whether the fields of ``update_rollout`` may change too.
            record: The rollout as the caller has read it already.
            light: Whether the input is not needed.
            alone: Whether the caller looks after the worker.

        Returns:
            The rollout and the attempt, as they are afterwards.
        """
        tries = 0
        while True:
            if record is None:
                record = await self.get(rollout_id, light=light)
            change = decide(record, None)
            before = record.find(attempt_id)
            if change is None:
                return record.rollout, before
            attempt = change.attempt or before
            concerned = None if alone else worker_id or (attempt.worker_id if attempt else None)
            release = release_of(record, attempt, concerned, decide)
            if await self._replace(record, change, release, payload=payload):
                break
            tries += 1
            await asyncio.sleep(random.uniform(0, 0.002 * min(tries, 20)))
            record = None
        self.tell(record.rollout, change, known=before)
        decided = record

        def follow(worker: Worker | None) -> Worker | None:
            again = decide(decided, worker)
            return again.worker if again else None

        await self._workers.follow(concerned, follow, token=release["token"] if release else None)
        return change.rollout or record.rollout, attempt

    async def _replace(
        self,
        record: Record,
        change: Change,
        release: dict[str, Any] | None,
        *,
        payload: bool,
    ) -> bool:
        fields: dict[str, Any] = {}
        if change.rollout is not None:
            fields |= status_fields(change.rollout)
            if payload:
                fields |= payload_fields(change.rollout)
        if change.attempt is not None:
            fields[f"attempts.{change.attempt.attempt_id}"] = attempt_fields(change.attempt)
        if change.queue is not None:
            appended = change.queue == "append"
            fields["queue_position"] = await self._db.draw("order") if appended else None
        if release or (record.release and _comes_back(record, change)):
            fields["release"] = release
        token = generate_id(8)
        fields["recent"] = [*record.recent[1 - _RECENT :], token]
        which = self._db.by(rollout_id=record.rollout.rollout_id)
        tries = 0

        async def replace() -> bool:
            nonlocal tries
            tries += 1
            result = await self._db.rollouts.update_one(
                {**which, "version": record.version}, {"$set": fields, "$inc": {"version": 1}}
            )
            if result.matched_count or tries == 1:
                return result.matched_count == 1
            # The try before this one may have done it and lost its reply.
            mine = await self._db.rollouts.find_one({**which, "recent": token}, {"_id": 1})
            return mine is not None

        return await self._db.again(replace)

    def tell(self, before: Rollout, change: Change, *, known: Attempt | None) -> None:
        """Tell listeners what a change was; ``known`` is the attempt as it was before."""
        attempt, rollout = change.attempt, change.rollout
        if attempt is not None and (known is None or known.status != attempt.status):
            self._feed.tell(
                "attempt",
                rollout_id=attempt.rollout_id,
                attempt_id=attempt.attempt_id,
                worker_id=attempt.worker_id,
                status=attempt.status,
            )
        if rollout is not None:
            was, is_now = (item.status in FINISHED_STATUSES for item in (before, rollout))
            self._feed.tell(
                "rollout",
                finished=is_now if was != is_now else None,
                rollout_id=rollout.rollout_id,
                status=rollout.status,
            )


def _comes_back(record: Record, change: Change) -> bool:
    """Whether a worker may be on an attempt again that it was taken off before."""
    after = change.attempt
    before = after and record.find(after.attempt_id)
    if after is None:
        return False
    return (
        before is None
        or before.worker_id != after.worker_id
        or (before.status in lifecycle.ENDED_STATUSES) > (after.status in lifecycle.ENDED_STATUSES)
    )
