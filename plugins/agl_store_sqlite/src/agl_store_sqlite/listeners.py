"""Who in this process waits for what: work, the end of rollouts, or news."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from agl_core.store.events import EventBus, Subscription
from agl_core.store.waiting import FinishWait, FinishWaits, WorkLine
from agl_core.store.wakeup import Wakeup
from agl_core.types import FINISHED_STATUSES
from agl_store_sqlite.tables import Tables
from agl_store_sqlite.transaction import Told

__all__ = ["Listeners"]


class Listeners:
    """The waiting callers of one process; thread-safe."""

    def __init__(self) -> None:
        # Re-entrant, because a coroutine that is garbage-collected leaves its line, and that may
        # happen anywhere, also in a thread that holds the lock.
        self._lock = threading.RLock()
        self._line = WorkLine()
        self._waits = FinishWaits()
        self._bus = EventBus()

    # -- work ------------------------------------------------------------------------------------

    @property
    def waiting_for_work(self) -> int:
        return len(self._line)

    def join(self) -> tuple[int, Wakeup]:
        with self._lock:
            return self._line.join()

    def resume(self, ticket: int) -> None:
        with self._lock:
            self._line.resume(ticket)

    def leave(self, ticket: int) -> None:
        with self._lock:
            self._line.leave(ticket)

    def work_arrived(self, available: int) -> None:
        """Wake as many of those who wait for work as there is work."""
        with self._lock:
            self._line.wake(available)

    # -- the end of rollouts ---------------------------------------------------------------------

    def watch(self, wait: FinishWait, rollout_ids: set[str]) -> None:
        with self._lock:
            self._waits.add(wait, rollout_ids)

    def unwatch(self, wait: FinishWait, rollout_ids: set[str]) -> None:
        with self._lock:
            self._waits.remove(wait, rollout_ids)

    def settle(self, wait: FinishWait, tables: Tables) -> None:
        """Strike out of a new wait what is finished already.

        Under the lock: what is committed after this read is told after it.
        """
        with self._lock:
            for rollout_id in tuple(wait.pending):
                if tables.status_of(rollout_id) in FINISHED_STATUSES:
                    wait.pending.discard(rollout_id)

    def rearm(self, wait: FinishWait) -> None:
        """Go on waiting, unless everything is finished."""
        with self._lock:
            if wait.pending:
                wait.wakeup.clear()

    # -- news ------------------------------------------------------------------------------------

    def tell(self, told: Sequence[Told], now: float) -> None:
        """Pass on what a transaction changed, after it was committed."""
        with self._lock:
            for kind, ids, finished in told:
                if finished is True:
                    self._waits.finished(ids["rollout_id"])
                elif finished is False:
                    self._waits.reopened(ids["rollout_id"])
                self._bus.tell(kind, now, **ids)

    def subscribe(self) -> Subscription:
        with self._lock:
            return self._bus.subscribe()

    def take(self, subscription: Subscription):
        """Return what a listener has not seen, and whether more can come."""
        with self._lock:
            return subscription.take(), not self._bus.closed

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            self._bus.unsubscribe(subscription)

    def close(self) -> None:
        with self._lock:
            self._bus.close()
