"""What one process does with the committed changes of a store.

They wake its waiting callers, for work or for finished rollouts, and go to its streams of events
and to its listeners of ``rollout_ended``.

:class:`Waiters` is thread-safe. The classes below it are not; its lock guards them.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager

from agl_core.plugins import notify
from agl_core.store import without_key
from agl_core.types import FINISHED_STATUSES, QUEUING_STATUSES
from agl_core.wakeup import Wakeup
from agl_store_kit.backend import EndNotice, Notice
from agl_store_kit.events import EventBus, Subscription


class WaitingClaim:
    """A claim that waits for work: its place in the wait queue."""

    __slots__ = ("awake", "number", "wakeup")

    def __init__(self, number: int) -> None:
        self.number = number
        self.wakeup = Wakeup()
        self.awake = False
        """Whether it was woken and has not checked for work since."""

    def __lt__(self, other: WaitingClaim) -> bool:
        return self.number < other.number


class FinishWait:
    """One caller's wait for a set of rollouts."""

    __slots__ = ("pending", "rollout_ids", "wakeup")

    def __init__(self, rollout_ids: Collection[str]) -> None:
        self.rollout_ids = frozenset(rollout_ids)
        self.pending = set(self.rollout_ids)
        """Rollouts among them that are not known to be finished."""
        self.wakeup = Wakeup()


class Waiters:
    """The listener of a backend. Thread-safe."""

    def __init__(self) -> None:
        # Re-entrant: the garbage collector may close a waiting coroutine at any point, also on a
        # thread that holds the lock; the coroutine then leaves the wait queue.
        self._lock = threading.RLock()
        self._last_number = 0
        self._asleep: list[WaitingClaim] = []
        self._claims: set[WaitingClaim] = set()
        self._finish_waits: dict[str, dict[FinishWait, None]] = {}
        self._bus = EventBus()

    # -- calls of the backend --------------------------------------------------------------------

    def changed(self, notices: Sequence[Notice]) -> None:
        """See :meth:`agl_store_kit.backend.BackendListener.changed`."""
        with self._lock:
            if self._asleep or self._finish_waits:
                for notice in notices:
                    if notice.kind == "rollout":
                        self._rollout_changed(notice)
            self._bus.publish(notices)

    def announce(self, notices: Sequence[Notice]) -> None:
        """See :meth:`agl_store_kit.backend.BackendListener.announce`."""
        ends = [notice for notice in notices if type(notice) is EndNotice]
        if not ends:  # most changes
            return
        with without_key():
            for notice in ends:
                notify("rollout_ended", rollout=notice.rollout)

    def work_available(self, count: int) -> None:
        """See :meth:`agl_store_kit.backend.BackendListener.work_available`."""
        with self._lock:
            for _ in range(min(count, len(self._asleep))):
                self._wake_first()

    def look_again(self) -> None:
        """See :meth:`agl_store_kit.backend.BackendListener.look_again`."""
        with self._lock:
            for waits in self._finish_waits.values():
                for wait in waits:
                    wait.wakeup.set()

    def _rollout_changed(self, notice: Notice) -> None:
        if self._asleep and notice.status in QUEUING_STATUSES:
            self._wake_first()
        if self._finish_waits and notice.rollout_id in self._finish_waits:
            finished = notice.status in FINISHED_STATUSES
            for wait in self._finish_waits[notice.rollout_id]:
                if finished:
                    wait.pending.discard(notice.rollout_id)
                    if not wait.pending:
                        wait.wakeup.set()
                else:
                    wait.pending.add(notice.rollout_id)

    # -- work ------------------------------------------------------------------------------------

    @property
    def waiting_claims(self) -> int:
        """Number of claims that wait for work."""
        return len(self._claims)

    @contextmanager
    def waiting_claim(self) -> Generator[WaitingClaim]:
        """Wait in the queue of claims: each new rollout in the store wakes the first sleeping one.

        Being woken is only a hint. The woken caller calls :meth:`look` and then claims. A caller
        that was woken and leaves without a check wakes the next one instead.
        """
        with self._lock:
            self._last_number += 1
            claim = WaitingClaim(self._last_number)
            claim.awake = True  # until its first check
            self._claims.add(claim)
        failed = False
        try:
            yield claim
        except BaseException:
            failed = True  # it may have been cancelled between check and claim
            raise
        finally:
            with self._lock:
                self._claims.discard(claim)
                if not claim.awake:  # dead, it must not be the first of those that sleep
                    del self._asleep[bisect_left(self._asleep, claim)]
                if claim.awake or failed:
                    self._wake_first()

    def look(self, claim: WaitingClaim) -> None:
        """Sleep again at the old place. Call it before each claim, so that no work is missed."""
        with self._lock:
            claim.wakeup.clear()
            if claim.awake:
                claim.awake = False
                insort(self._asleep, claim)

    def _wake_first(self) -> None:
        while self._asleep:
            claim = self._asleep.pop(0)
            claim.awake = True
            if claim.wakeup.set():
                return
            self._claims.discard(claim)  # its event loop is closed, so the caller is gone

    # -- finished rollouts -----------------------------------------------------------------------

    @contextmanager
    def finish_wait(self, rollout_ids: Collection[str]) -> Generator[FinishWait]:
        """Wait until rollouts are finished: the wait's wakeup is set when none is pending."""
        wait = FinishWait(rollout_ids)
        with self._lock:
            for rollout_id in wait.rollout_ids:
                self._finish_waits.setdefault(rollout_id, {})[wait] = None
        try:
            yield wait
        finally:
            with self._lock:
                for rollout_id in wait.rollout_ids:
                    waits = self._finish_waits[rollout_id]
                    del waits[wait]
                    if not waits:
                        del self._finish_waits[rollout_id]

    def reset(self, wait: FinishWait) -> None:
        """Mark all rollouts of a wait as pending; call it before their statuses are read."""
        with self._lock:
            wait.pending.update(wait.rollout_ids)
            wait.wakeup.clear()

    def settle(self, wait: FinishWait, finished: Collection[str]) -> None:
        """Remove the rollouts from a wait that were read as finished after :meth:`reset`."""
        with self._lock:
            wait.pending.difference_update(finished)
            if not wait.pending:
                wait.wakeup.set()

    @property
    def awaited_rollouts(self) -> Collection[str]:
        """Rollouts that at least one caller waits for."""
        return self._finish_waits.keys()

    # -- events ----------------------------------------------------------------------------------

    def subscribe(self) -> Subscription:
        with self._lock:
            return self._bus.subscribe()

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            self._bus.unsubscribe(subscription)

    def take(self, subscription: Subscription):
        """Return the events that a listener has not seen, and whether more may come."""
        with self._lock:
            return subscription.take(), not self._bus.closed

    def close(self) -> None:
        """End every listener's stream after its buffered events, and wake all waiting calls.

        A woken call then calls the backend, which raises because it is closed.
        """
        with self._lock:
            self._bus.close()
            self.work_available(len(self._asleep))
            self.look_again()
