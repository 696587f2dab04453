"""Who waits for work, and who waits for rollouts to finish.

Nothing here is thread-safe: the store's lock guards it.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from agl_core.store.wakeup import Wakeup

__all__ = ["FinishWait", "FinishWaits", "WorkLine"]


class WorkLine:
    """The line of callers waiting for work.

    Being woken is a turn and not a claim: the woken caller claims for itself, under the store's
    lock, and returns what it claimed without another await. A caller that is cancelled before that
    has claimed nothing, and leaving the line passes its turn on.
    """

    def __init__(self) -> None:
        self._tickets = 0
        self._wakeups: dict[int, Wakeup] = {}
        self._asleep: list[int] = []
        self._woken: set[int] = set()

    def __len__(self) -> int:
        return len(self._wakeups)

    def join(self) -> tuple[int, Wakeup]:
        """Take the last place; return its ticket and what to wait on."""
        self._tickets += 1
        wakeup = self._wakeups[self._tickets] = Wakeup()
        self._asleep.append(self._tickets)
        return self._tickets, wakeup

    def resume(self, ticket: int) -> None:
        """Go on waiting at the old place, after a turn in which somebody else was faster."""
        if ticket in self._woken:
            self._woken.discard(ticket)
            self._wakeups[ticket].clear()
            insort(self._asleep, ticket)

    def leave(self, ticket: int) -> None:
        """Give the place up; call :meth:`wake` afterwards to pass an unused turn on."""
        if self._wakeups.pop(ticket, None) is None:
            return
        if ticket in self._woken:
            self._woken.discard(ticket)
        else:
            del self._asleep[bisect_left(self._asleep, ticket)]

    def wake(self, available: int) -> None:
        """Make sure that as many callers are awake as there are things to claim."""
        while self._asleep and len(self._woken) < available:
            ticket = self._asleep.pop(0)
            self._woken.add(ticket)
            if not self._wakeups[ticket].set():  # its loop is gone, and so is the caller
                self._woken.discard(ticket)
                del self._wakeups[ticket]


class FinishWait:
    """One caller's wait for a set of rollouts."""

    __slots__ = ("pending", "wakeup")

    def __init__(self, pending: set[str]) -> None:
        self.pending = pending
        """Rollouts among them that are not finished now; one that is requeued comes back."""
        self.wakeup = Wakeup()


class FinishWaits:
    """All waits, by rollout."""

    def __init__(self) -> None:
        self._waits: dict[str, dict[FinishWait, None]] = {}

    def add(self, wait: FinishWait, rollout_ids: set[str]) -> None:
        for rollout_id in rollout_ids:
            self._waits.setdefault(rollout_id, {})[wait] = None

    def remove(self, wait: FinishWait, rollout_ids: set[str]) -> None:
        for rollout_id in rollout_ids:
            waits = self._waits[rollout_id]
            del waits[wait]
            if not waits:
                del self._waits[rollout_id]

    def finished(self, rollout_id: str) -> None:
        """Wake every caller for whom this was the last one."""
        for wait in tuple(self._waits.get(rollout_id, ())):
            wait.pending.discard(rollout_id)
            if not wait.pending:
                wait.wakeup.set()

    def reopened(self, rollout_id: str) -> None:
        """Make every caller wait for this rollout again."""
        for wait in tuple(self._waits.get(rollout_id, ())):
            wait.pending.add(rollout_id)
