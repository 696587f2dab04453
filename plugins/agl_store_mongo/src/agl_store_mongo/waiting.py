"""Who in this process waits for what: work, the end of rollouts, or news.

Everything here happens in the store's own event loop, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agl_core.store import StoreEvent
from agl_core.store.events import EventBus, Subscription
from agl_core.store.waiting import FinishWait, FinishWaits, WorkLine
from agl_core.types import FINISHED_STATUSES, QUEUING_STATUSES
from agl_store_mongo.database import Database
from agl_store_mongo.feed import Feed, Told

__all__ = ["Waiting"]

logger = logging.getLogger(__name__)

Claim = Callable[[], Awaitable[list[Any]]]


class Waiting:
    """The waiting callers of one process."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self.feed = Feed(database, self._heard, self._look, self._look_for_work)
        self._line = WorkLine()
        self._waits = FinishWaits()
        self._pending: set[FinishWait] = set()
        self._bus = EventBus()
        self._waking: asyncio.Task[None] | None = None
        self._work_came = False

    # -- work ------------------------------------------------------------------------------------

    async def for_work(
        self, claim: Claim, deadline: float, nap: Callable[[float], float]
    ) -> list[Any]:
        """Claim, as soon as there is something to claim.

        Args:
            claim: Claims what is there; called when it is this caller's turn.
            deadline: When to give up, in the seconds of ``time.monotonic``.
            nap: Maps the time left to how long to sleep at most, in seconds.
        """
        ticket, wakeup = self._line.join()
        try:
            await self.feed.join()
            # Work that came before the place in the line was taken woke nobody here.
            claimed = await claim()
            while not claimed:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return []
                await wakeup.wait(nap(remaining))
                claimed = await claim()
                if not claimed:
                    self._line.resume(ticket)
            return claimed
        finally:
            self.feed.leave()
            self._line.leave(ticket)
            self._wake_workers()

    def _wake_workers(self) -> None:
        self._work_came = True
        if len(self._line) and self._waking is None:
            self._waking = asyncio.ensure_future(self._wake_all())
            self._waking.add_done_callback(self._woken)

    async def _wake_all(self) -> None:
        while self._work_came:  # some may come while the queue is counted
            self._work_came = False
            await self._wake()

    async def _wake(self) -> None:
        cursor = self._db.rollouts.find(self._db.queued(), {"_id": 1}).limit(
            max(len(self._line), 1)
        )
        self._line.wake(len(await cursor.to_list()))

    def _woken(self, task: asyncio.Task[None]) -> None:
        self._waking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("Could not look for work: %s", error)

    # -- the end of rollouts ---------------------------------------------------------------------

    async def for_rollouts(
        self,
        rollout_ids: set[str],
        deadline: float | None,
        nap: Callable[[float | None], float],
        between: Callable[[], Awaitable[None]],
    ) -> None:
        """Return once all of these are finished, or at the deadline.

        Args:
            rollout_ids: Rollouts that exist.
            deadline: In the seconds of ``time.monotonic``; None waits as long as it takes.
            nap: Maps the time left to how long to sleep at most, in seconds.
            between: Called after each sleep.
        """
        wait = FinishWait(set(rollout_ids))
        self._waits.add(wait, rollout_ids)
        self._pending.add(wait)
        try:
            await self.feed.join()
            await self._settle({wait})
            while wait.pending:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return
                await wait.wakeup.wait(nap(remaining))
                await between()
                if not wait.pending:
                    # Words of different processes can arrive in another order than they were
                    # spoken in; what counts is what is stored.
                    wait.pending.update(rollout_ids)
                    await self._settle({wait})
                if wait.pending:
                    wait.wakeup.clear()
        finally:
            self.feed.leave()
            self._pending.discard(wait)
            self._waits.remove(wait, rollout_ids)

    async def _settle(self, waits: set[FinishWait]) -> None:
        """Strike out of waits what is finished."""
        pending = set[str]().union(*(wait.pending for wait in waits))
        if not pending:
            return
        finished = self._db.by(
            rollout_id={"$in": sorted(pending)}, status={"$in": sorted(FINISHED_STATUSES)}
        )
        async for document in self._db.rollouts.find(finished, {"rollout_id": 1, "_id": 0}):
            self._waits.finished(document["rollout_id"])

    # -- news ------------------------------------------------------------------------------------

    def _heard(self, told: Sequence[Told]) -> None:
        queued = False
        for kind, ids, finished, moment in told:
            if finished is True:
                self._waits.finished(ids["rollout_id"])
            elif finished is False:
                self._waits.reopened(ids["rollout_id"])
            queued |= kind == "rollout" and ids["status"] in QUEUING_STATUSES
            self._bus.tell(kind, moment, **ids)
        if queued:
            self._wake_workers()

    async def _look_for_work(self) -> None:
        if len(self._line) and self._waking is None:
            await self._wake()

    async def _look(self) -> None:
        """What a word would have caused that was never spoken."""
        await self._look_for_work()
        await self._settle(self._pending)

    async def subscribe(self) -> Subscription:
        """Begin to listen; :meth:`unsubscribe` ends it."""
        subscription = self._bus.subscribe()
        await self.feed.join()
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        self._bus.unsubscribe(subscription)
        self.feed.leave()

    async def next_events(self, subscription: Subscription) -> list[StoreEvent]:
        """Return what a listener has not seen, waiting for it; nothing once the store is closed."""
        while not (events := subscription.take()) and not self._bus.closed:
            await subscription.wakeup.wait()
        return events

    async def close(self) -> None:
        """Tell what is left to tell; listeners end."""
        self._bus.close()
        await self.feed.close()
