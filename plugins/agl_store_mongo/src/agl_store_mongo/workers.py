"""Workers: documents of their own, written after the rollout that moves them.

A process that dies between the two writes must not leave a worker on an attempt that was taken from
it, because that is how its runner learns of it. So a change that takes a worker off an attempt also
writes a note of it into the rollout (``release``), and the worker's next heartbeat carries the note
out if it was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agl_core.ids import generate_id
from agl_core.types import Attempt, Worker, evolve
from agl_store_kit import Decide, DecideWorker, RolloutState, worker_notice
from agl_store_mongo.database import Database, pause_after
from agl_store_mongo.documents import Document, worker_fields, worker_from
from agl_store_mongo.feed import Feed

__all__ = ["Workers"]


class Workers:
    """The workers of a partition."""

    def __init__(self, database: Database, feed: Feed) -> None:
        self._db = database
        self._feed = feed

    async def find(self, worker_id: str) -> Worker | None:
        """Return a worker."""
        document = await self._find(worker_id)
        return None if document is None else worker_from(document)

    async def _find(self, worker_id: str) -> Document | None:
        return await self._db.workers.find_one(self._db.by(worker_id=worker_id))

    # -- changing --------------------------------------------------------------------------------

    async def change(self, worker_id: str, decide: DecideWorker) -> Worker:
        """Change a worker; see :meth:`agl_store_kit.StorageBackend.change_worker`."""
        document = await self._find(worker_id)
        if document is not None and document["current_rollout_id"] is not None:
            await self._carry_out_release(document)
        worker = await self._update(worker_id, decide)
        assert worker is not None
        return worker

    async def follow(
        self,
        worker_id: str | None,
        state: RolloutState,
        decide: Decide,
        *,
        token: str | None = None,
    ) -> None:
        """Write the worker's part of a change of a rollout.

        Args:
            worker_id: The worker; None and ``""`` mean no worker.
            state: The state that the change was decided upon.
            decide: Says what changes.
            token: Token of the release that this carries out.
        """

        def moved(worker: Worker | None) -> Worker | None:
            change = decide(state._replace(worker=worker))
            return None if change is None else change.worker

        if worker_id:
            await self._update(worker_id, moved, token)

    async def free(self, attempt: Attempt) -> None:
        """Free the worker of an attempt that is removed as if it had never begun."""

        def freed(worker: Worker | None) -> Worker | None:
            if worker is None or worker.current_attempt_id != attempt.attempt_id:
                return None
            return _off(worker, {"status": "idle"})

        if attempt.worker_id:
            await self._update(attempt.worker_id, freed)

    async def _update(
        self,
        worker_id: str,
        decide: Callable[[Worker | None], Worker | None],
        token: str | None = None,
    ) -> Worker | None:
        """Read a worker, ask, and write it; again after a lost race. None changes nothing."""
        tries = 0
        while True:
            document = await self._find(worker_id)
            before = None if document is None else worker_from(document)
            worker = decide(before)
            if worker is None:
                return None
            if await self._save(document, worker, token):
                break
            tries += 1
            await pause_after(tries)
        self._feed.publish(worker_notice(before, worker, time.time()))
        return worker

    async def _save(self, document: Document | None, worker: Worker, token: str | None) -> bool:
        fields = worker_fields(worker)
        if token is not None:
            fields["released"] = token
        if document is None:
            ordinal = await self._db.draw("order")
            new = {"released": None, "version": 0, "ordinal": ordinal, **fields}
            return not await self._db.insert(self._db.workers, [new])
        result = await self._db.again(
            lambda: self._db.workers.update_one(
                self._db.by(worker_id=worker.worker_id, version=document["version"]),
                {"$set": fields, "$inc": {"version": 1}},
            )
        )
        return result.matched_count == 1

    # -- releases --------------------------------------------------------------------------------

    def release_of(
        self,
        worker_id: str | None,
        state: RolloutState,
        attempt: Attempt | None,
        decide: Decide,
    ) -> dict[str, Any] | None:
        """Return the note that a change takes a worker off an attempt, if it is on that attempt."""
        if attempt is None or not worker_id:
            return None
        on_it = Worker(
            worker_id=worker_id,
            status="busy",
            current_rollout_id=attempt.rollout_id,
            current_attempt_id=attempt.attempt_id,
        )
        change = decide(state._replace(worker=on_it))
        if change is None or change.worker is None or change.worker.current_attempt_id is not None:
            return None
        return {
            "worker_id": worker_id,
            "attempt_id": attempt.attempt_id,
            "status": change.worker.status,
            "time": change.worker.last_idle_time,
            "token": generate_id(8),
        }

    async def _carry_out_release(self, document: Document) -> None:
        """Take a worker off its attempt if the process that should have done so has died."""
        rollout = await self._db.rollouts.find_one(
            self._db.by(rollout_id=document["current_rollout_id"]), {"release": 1}
        )
        release = rollout and rollout["release"]
        if (
            not release
            or release["worker_id"] != document["worker_id"]
            or release["attempt_id"] != document["current_attempt_id"]
            or release["token"] == document["released"]
        ):
            return

        def released(worker: Worker | None) -> Worker | None:
            if worker is None or worker.current_attempt_id != release["attempt_id"]:
                return None
            return _off(worker, {"status": release["status"], "last_idle_time": release["time"]})

        await self._update(document["worker_id"], released, release["token"])


def _off(worker: Worker, changes: dict[str, Any]) -> Worker:
    return evolve(worker, {"current_rollout_id": None, "current_attempt_id": None, **changes})
