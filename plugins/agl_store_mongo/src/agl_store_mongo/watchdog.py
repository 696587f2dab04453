"""The watchdog: one look at a time over all processes, by a lease in the database."""

from __future__ import annotations

import logging
import time

from agl_core import lifecycle
from agl_core.lifecycle import Change
from agl_core.types import RUNNING_STATUSES, Worker
from agl_store_mongo.database import Database
from agl_store_mongo.documents import WITHOUT_INPUT, Record, record_from
from agl_store_mongo.rollouts import Rollouts

__all__ = ["Watchdog"]

logger = logging.getLogger(__name__)


class Watchdog:
    """Looks for attempts of a partition that take too long or are silent."""

    def __init__(self, database: Database, rollouts: Rollouts) -> None:
        self._db = database
        self._rollouts = rollouts

    async def pass_verdicts(self, debounce: float) -> int:
        """Let the watchdog look, unless some process just did; return the number of verdicts."""
        now = time.time()
        due = self._db.by(
            name="last_scan",
            # A clock that was set back must not silence the watchdog.
            **{"$or": [{"value": {"$lte": now - debounce}}, {"value": {"$gt": now}}]},
        )
        lease = await self._db.again(
            lambda: self._db.counters.update_one(due, {"$set": {"value": now}})
        )
        if not lease.matched_count:
            return 0
        cursor = self._db.rollouts.find(
            self._db.by(timed=True, status={"$in": sorted(RUNNING_STATUSES)}), WITHOUT_INPUT
        )
        verdicts = 0
        async for document in cursor:
            verdicts += await self._judge(record_from(document), now)
        return verdicts

    async def _judge(self, record: Record, now: float) -> int:
        latest = record.latest
        if latest is None:
            logger.warning(
                "Rollout %s runs without an attempt; not watched", record.rollout.rollout_id
            )
            return 0
        passed = 0

        def decide(record: Record, worker: Worker | None) -> Change | None:
            nonlocal passed
            attempt = record.attempt(latest.attempt_id)
            is_latest = record.latest == attempt
            status = lifecycle.verdict(record.rollout, attempt, now=now) if is_latest else None
            passed = int(status is not None)
            if status is None:
                return None
            return lifecycle.update_attempt(
                record.rollout,
                attempt,
                {"status": status},
                is_latest=True,
                worker=worker,
                now=now,
            )

        if decide(record, None) is not None:
            await self._rollouts.change(
                record.rollout.rollout_id,
                decide,
                attempt_id=latest.attempt_id,
                record=record,
                light=True,
            )
        return passed
