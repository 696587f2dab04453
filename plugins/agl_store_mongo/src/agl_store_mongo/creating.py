"""New rollouts: one insert each, or one for a whole batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from agl_core import lifecycle
from agl_core.errors import StoreDataError
from agl_core.ids import new_attempt_id, new_rollout_id
from agl_core.lifecycle import Change
from agl_core.types import AttemptedRollout, Rollout, Worker, attach_attempt
from agl_store_mongo.database import Database
from agl_store_mongo.documents import rollout_document
from agl_store_mongo.keys import id_from
from agl_store_mongo.rollouts import Rollouts
from agl_store_mongo.workers import Workers

__all__ = ["Creating"]


class Creating:
    """Creates the rollouts of a partition."""

    def __init__(self, database: Database, rollouts: Rollouts, workers: Workers) -> None:
        self._db = database
        self._rollouts = rollouts
        self._workers = workers

    async def enqueue(self, batch: Sequence[dict[str, Any]], key: str | None) -> list[Rollout]:
        """Create rollouts at the tail of the queue."""
        if not batch:
            return []
        first = await self._db.draw("order", len(batch))
        resources_id = await self._latest_resources(batch)
        now = time.time()
        rollouts = [
            _new_rollout(fields, resources_id, now, key, place)
            for place, fields in enumerate(batch)
        ]
        documents = [
            rollout_document(rollout, None, ordinal)
            for ordinal, rollout in enumerate(rollouts, start=first)
        ]
        if not await self._insert(documents, key):
            known = await self._rollouts.find_many([rollout.rollout_id for rollout in rollouts])
            rollouts = [known[rollout.rollout_id].rollout for rollout in rollouts]
        for rollout in rollouts:
            self._rollouts.tell(rollout, Change(rollout), known=None)
        return rollouts

    async def start(
        self, fields: dict[str, Any], worker_id: str | None, key: str | None
    ) -> AttemptedRollout:
        """Create a rollout with its first attempt."""
        ordinal = await self._db.draw("order")
        rollout = _new_rollout(fields, await self._latest_resources([fields]), time.time(), key, 0)
        attempt_id = new_attempt_id() if key is None else id_from("at-", key, length=8)

        def decide(worker: Worker | None) -> Change:
            return lifecycle.begin_attempt(
                rollout,
                attempt_id=attempt_id,
                sequence_id=1,
                now=rollout.start_time,
                worker_id=worker_id,
                worker=worker,
            )

        change = decide(None)
        assert change.rollout is not None
        assert change.attempt is not None
        document = rollout_document(change.rollout, change.attempt, ordinal)
        if not await self._insert([document], key):
            known = await self._rollouts.get(rollout.rollout_id)
            return attach_attempt(known.rollout, known.attempt("latest"))
        self._rollouts.tell(rollout, change, known=None)
        await self._workers.follow(worker_id, lambda worker: decide(worker).worker)
        return attach_attempt(change.rollout, change.attempt)

    async def _latest_resources(self, batch: Sequence[dict[str, Any]]) -> str | None:
        if all(fields["resources_id"] is not None for fields in batch):
            return None
        document = await self._db.latest_resources("resources_id")
        return None if document is None else document["resources_id"]

    async def _insert(self, documents: list[dict[str, Any]], key: str | None) -> bool:
        """Insert rollouts; return whether they are new.

        With an idempotency key their ids come from it: those that exist already were inserted by
        an earlier call of the same key, whose reply was lost.
        """
        known = await self._db.insert(self._db.rollouts, documents)
        if known and key is None:
            raise StoreDataError(f"rollout id {documents[min(known)]['rollout_id']} is taken")
        return not known


def _new_rollout(
    fields: Mapping[str, Any], resources_id: str | None, now: float, key: str | None, place: int
) -> Rollout:
    chosen = dict(fields)
    if chosen["resources_id"] is None:
        chosen["resources_id"] = resources_id
    rollout_id = new_rollout_id() if key is None else id_from("ro-", key, place)
    return lifecycle.new_rollout(rollout_id=rollout_id, now=now, **chosen)
