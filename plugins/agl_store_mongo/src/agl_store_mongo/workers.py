"""Workers: documents of their own that follow what happens to their attempts.

A rollout's document is written first, its worker's second. A process that dies between the two
must not leave a worker on an attempt that was taken from it, because that is how its runner learns
of it. So whatever takes a worker off an attempt also notes it in the rollout (``release``), and the
worker's next heartbeat makes up for what is missing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

from agl_core import lifecycle
from agl_core.ids import generate_id
from agl_core.lifecycle import Change
from agl_core.types import Attempt, Worker, evolve
from agl_store_mongo.database import Database
from agl_store_mongo.documents import Document, Record, worker_fields, worker_from
from agl_store_mongo.feed import Feed

__all__ = ["Workers", "release_of"]

Follow = Callable[[Worker | None], Worker | None]


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

    async def follow(
        self, worker_id: str | None, decide: Follow, *, token: str | None = None
    ) -> Worker | None:
        """Change a worker as ``decide`` says of it; return what it became, None if nothing.

        Args:
            worker_id: The worker; None and ``""`` mean that there is none.
            decide: Called again whenever somebody else was faster.
            token: Of the release that this change carries out.
        """
        if not worker_id:
            return None
        tries = 0
        while True:
            document = await self._find(worker_id)
            worker = decide(None if document is None else worker_from(document))
            if worker is None:
                return None
            if await self._save(document, worker, token):
                break
            tries += 1
            await asyncio.sleep(random.uniform(0, 0.002 * min(tries, 20)))
        self._feed.tell(
            "worker",
            worker_id=worker.worker_id,
            status=worker.status,
            rollout_id=worker.current_rollout_id,
            attempt_id=worker.current_attempt_id,
        )
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

    async def let_go(self, attempt: Attempt) -> None:
        """Free the worker of an attempt that is taken back as if it had never begun."""

        def freed(worker: Worker | None) -> Worker | None:
            if worker is None or worker.current_attempt_id != attempt.attempt_id:
                return None
            return evolve(
                worker,
                {"current_rollout_id": None, "current_attempt_id": None, "status": "idle"},
            )

        await self.follow(attempt.worker_id, freed)

    async def heartbeat(self, worker_id: str, changes: dict[str, Any]) -> Worker:
        """Record a worker's heartbeat."""
        document = await self._find(worker_id)
        if document is not None and document["current_rollout_id"] is not None:
            await self._make_up(document)
        worker = await self.follow(
            worker_id,
            lambda worker: lifecycle.worker_heartbeat(worker_id, worker, changes, now=time.time()),
        )
        assert worker is not None
        return worker

    async def _make_up(self, document: Document) -> None:
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
            return evolve(
                worker,
                {
                    "status": release["status"],
                    "last_idle_time": release["time"],
                    "current_rollout_id": None,
                    "current_attempt_id": None,
                },
            )

        await self.follow(document["worker_id"], released, token=release["token"])


def release_of(
    record: Record,
    attempt: Attempt | None,
    worker_id: str | None,
    decide: Callable[[Record, Worker | None], Change | None],
) -> dict[str, Any] | None:
    """Return the note that a change takes a worker off an attempt, if it is on that attempt."""
    if attempt is None or not worker_id:
        return None
    on_it = Worker(
        worker_id=worker_id,
        status="busy",
        current_rollout_id=record.rollout.rollout_id,
        current_attempt_id=attempt.attempt_id,
    )
    change = decide(record, on_it)
    if change is None or change.worker is None or change.worker.current_attempt_id is not None:
        return None
    return {
        "worker_id": worker_id,
        "attempt_id": attempt.attempt_id,
        "status": change.worker.status,
        "time": change.worker.last_idle_time,
        "token": generate_id(8),
    }
