"""Rollouts: read, ask for a decision, write it if the document is still the one that was read.

Each change is one write to one document, conditional on the version that was decided upon; after a
lost race the change is decided again. The worker's document follows in a second write
(:mod:`agl_store_mongo.workers`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from agl_core.ids import generate_id
from agl_core.types import Attempt, Rollout, evolve
from agl_store_kit import (
    Decide,
    RolloutRecord,
    RolloutState,
    changed_figures,
    lifecycle,
    notices_of,
    rollout_not_found,
)
from agl_store_kit.lifecycle import Change
from agl_store_mongo.database import RECENT, Database, pause_after
from agl_store_mongo.documents import (
    WITHOUT_INPUT,
    Document,
    Record,
    attempt_fields,
    changed_payload_fields,
    record_from,
    rollout_document,
    status_fields,
)
from agl_store_mongo.feed import Feed
from agl_store_mongo.workers import Workers

__all__ = ["Rollouts"]


class Rollouts:
    """Rollouts, their attempts and the tail of the queue."""

    def __init__(self, database: Database, workers: Workers, feed: Feed) -> None:
        self._db = database
        self._workers = workers
        self._feed = feed

    # -- reading ---------------------------------------------------------------------------------

    async def find(self, rollout_id: str, *, payload: bool = True) -> Record | None:
        """Return a rollout; without ``payload`` its input is None."""
        document = await self._db.rollouts.find_one(
            self._db.by(rollout_id=rollout_id), None if payload else WITHOUT_INPUT
        )
        return None if document is None else record_from(document)

    async def find_without_input(self, rollout_ids: Sequence[str]) -> dict[str, Record]:
        """Return those of the rollouts that exist; their inputs are None."""
        which = self._db.by(rollout_id={"$in": list(rollout_ids)})
        cursor = self._db.rollouts.find(which, WITHOUT_INPUT)
        records = [record_from(document) async for document in cursor]
        return {record.rollout.rollout_id: record for record in records}

    # -- inserting -------------------------------------------------------------------------------

    async def insert(
        self, rollouts: Sequence[Rollout], begin: Decide | None, worker_id: str | None
    ) -> list[RolloutRecord] | None:
        """Insert rollouts; see :meth:`agl_store_kit.StorageBackend.insert_rollouts`."""
        first = await self._db.draw("order", len(rollouts))
        if any(rollout.resources_id is None for rollout in rollouts):
            latest = await self._db.latest_resources("resources_id")
            if latest is not None:
                rollouts = [_with_resources(rollout, latest) for rollout in rollouts]
        states = [RolloutState(rollout, 0, None, None) for rollout in rollouts]
        changes = [(begin and begin(state)) or Change(state.rollout) for state in states]
        stored = [
            (change.rollout or state.rollout, change.attempt)
            for state, change in zip(states, changes, strict=True)
        ]
        documents = [
            rollout_document(*record, ordinal) for ordinal, record in enumerate(stored, first)
        ]
        taken = await self._db.insert(self._db.rollouts, documents)
        for place, (state, change) in enumerate(zip(states, changes, strict=True)):
            if place not in taken:
                self._tell(state, change)
        if taken:
            return None
        if begin is not None:
            for state in states:
                await self._workers.follow(worker_id, state, begin)
        return stored

    # -- changing --------------------------------------------------------------------------------

    async def change(
        self,
        rollout_id: str,
        decide: Decide,
        *,
        attempt_id: str = "latest",
        worker_id: str | None = None,
        payload: bool = True,
        key: str | None = None,
        record: Record | None = None,
        only_revived: bool = False,
    ) -> RolloutRecord:
        """Change a rollout; see :meth:`agl_store_kit.StorageBackend.change`.

        Args:
            rollout_id: The rollout.
            decide: Says what changes.
            attempt_id: The attempt that it is about.
            worker_id: The worker that it is about; None means the attempt's.
            payload: Whether the input may change, or is returned.
            key: The call's idempotency key.
            record: The rollout as the caller has read it already.
            only_revived: Whether the worker can change only with an ``unresponsive`` attempt; saves
                reading it otherwise.
        """
        tries = 0
        while True:
            if record is None:
                record = await self.find(rollout_id, payload=payload)
            if record is None:
                raise rollout_not_found(rollout_id)
            state = record.state(attempt_id)
            if key is not None and key in record.keys:
                return state.rollout, state.attempt
            change = decide(state)
            if change is None:
                await self._repeat_start(state, decide, worker_id)
            if change is None or change == _NOTHING:
                return state.rollout, state.attempt
            attempt = change.attempt or state.attempt
            concerned = worker_id
            if concerned is None and attempt is not None:
                concerned = attempt.worker_id  # of this try: another one may have claimed since
            unconcerned = state.attempt is None or state.attempt.status != "unresponsive"
            follower = None if only_revived and unconcerned else concerned
            release = self._workers.release_of(follower, state, attempt, decide)
            if await self._replace(record, state, change, release, key):
                break
            tries += 1
            await pause_after(tries)
            record = None
        self._tell(state, change)
        token = release["token"] if release else None
        await self._workers.follow(follower, state, decide, token=token)
        return change.rollout or state.rollout, attempt

    def _tell(self, state: RolloutState, change: Change) -> None:
        """Tell what changed, without the worker: its own write tells that."""
        self._feed.publish(notices_of(state, change._replace(worker=None), time.time()))

    async def _repeat_start(
        self, state: RolloutState, decide: Decide, worker_id: str | None
    ) -> None:
        """Write the worker of an attempt that an earlier call with the same key has begun.

        The process of that call may have died before it wrote the worker.
        """
        attempt = state.attempt
        if attempt is None or attempt.status != "preparing" or worker_id != attempt.worker_id:
            return
        before = state._replace(attempt=None, attempt_count=attempt.sequence_id - 1)
        await self._workers.follow(worker_id, before, decide)

    async def _replace(
        self,
        record: Record,
        state: RolloutState,
        change: Change,
        release: dict[str, Any] | None,
        key: str | None,
    ) -> bool:
        """Write a change; return whether the rollout was still the one that was read."""
        fields: dict[str, Any] = {}
        if change.rollout is not None:
            fields |= status_fields(change.rollout)
            fields |= changed_payload_fields(state.rollout, change.rollout)
        if change.attempt is not None:
            fields[f"attempts.{change.attempt.attempt_id}"] = attempt_fields(change.attempt)
        fields |= changed_figures(state, change)
        if change.queue is not None:
            appended = change.queue == "append"
            fields["queue_position"] = await self._db.draw("order") if appended else None
        if release or (record.release and _is_back(state.attempt, change.attempt)):
            fields["release"] = release
        if key is not None:
            fields["keys"] = [*record.keys[1 - RECENT :], key]
        token = generate_id(8)
        fields["recent"] = [*record.recent[1 - RECENT :], token]
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
            # The try before this one may have written, and its reply was lost.
            own = await self._db.rollouts.find_one({**which, "recent": token}, {"_id": 1})
            return own is not None

        return await self._db.again(replace)


_NOTHING: Final = Change()


def _with_resources(rollout: Rollout, latest: Document) -> Rollout:
    if rollout.resources_id is not None:
        return rollout
    return evolve(rollout, {"resources_id": latest["resources_id"]})


def _is_back(before: Attempt | None, after: Attempt | None) -> bool:
    """Whether a worker may be on an attempt again after it was taken off."""
    if after is None:
        return False
    ended = lifecycle.ENDED_STATUSES
    return (
        before is None
        or before.worker_id != after.worker_id
        or (before.status in ended and after.status not in ended)
    )
