"""Publishes what critical sections changed, after them and in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from agl_core.store._backend import Notice


class Outbox:
    """A critical section that collects notices: ``with outbox: ... outbox.notices += notices``.

    The section is re-entrant: the garbage collector may close a coroutine at any point, and so end
    its call on a thread that is inside another call. Notices are published outside of the section,
    in the order of the sections, by one thread at a time. A thread that leaves the section while
    another one publishes does not wait for it: the other one publishes its notices, too.

    Args:
        publish: Gets the notices.

    Attributes:
        lock: The lock of the section, for readers.
        notices: What the sections changed and nobody has published yet.
    """

    def __init__(self, publish: Callable[[Sequence[Notice]], None]) -> None:
        self.lock = threading.RLock()
        self.notices: list[Notice] = []
        self._publish = publish
        self._depth = 0
        self._turn = threading.Lock()

    def __enter__(self) -> None:
        self.lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self.notices or self._depth or not self._turn.acquire(blocking=False):
            self.lock.release()
            return
        notices, self.notices = self.notices, []
        self.lock.release()
        try:
            while notices:
                self._publish(notices)
                with self.lock:
                    # The turn ends only if no other thread has left notices meanwhile.
                    notices, self.notices = self.notices, []
                    if not notices:
                        self._turn.release()
        except BaseException:  # Ctrl+C; the next section publishes what others left
            self._turn.release()
            raise
