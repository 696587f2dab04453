"""Publishes what critical sections changed, after them and in their order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from agl_core.store._backend import Notice


class Outbox:
    """A critical section that collects notices: ``with outbox: ... outbox.add(notices)``.

    The section is re-entrant: the garbage collector may close a coroutine at any point, and so end
    its call on a thread that is inside another call. Notices are published outside of the section,
    in the order of the sections, by one thread at a time. A thread that leaves the section while
    another one publishes does not wait for it: the other one publishes its notices, too.

    Args:
        publish: Gets the notices.

    Attributes:
        lock: The lock of the section, for readers.
    """

    def __init__(self, publish: Callable[[Sequence[Notice]], None]) -> None:
        self._publish = publish
        self.lock = threading.RLock()
        self._depth = 0
        self._notices: deque[Notice] = deque()
        self._turn = threading.Lock()

    def __enter__(self) -> None:
        self.lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        nested = self._depth
        self.lock.release()
        if self._notices and not nested:
            self._send()

    def add(self, notices: Sequence[Notice]) -> None:
        """Add notices; only inside the section."""
        self._notices += notices

    def _send(self) -> None:
        # Checked again after the turn: another thread may have left notices meanwhile.
        while self._notices and self._turn.acquire(blocking=False):
            try:
                batch: list[Notice] = []
                while self._notices:
                    batch.append(self._notices.popleft())
                self._publish(batch)
            finally:
                self._turn.release()
