"""Syncing what was committed, beside the writer instead of inside its commits.

With ``synchronous = FULL`` SQLite syncs the log within COMMIT, and the writer waits. Here a commit
writes the log without a sync (``synchronous = NORMAL``), and this thread syncs the log before the
group's callers are answered. One sync covers everything committed before it began, by any process:
the log is one file, written from front to back. Before SQLite copies the log into the database, and
before it begins the log anew, it syncs by itself, so what is committed is in one of the two synced
files at any time (https://www.sqlite.org/wal.html, "Checkpointing" and "Performance").

What a reader sees may be a sync ahead of what power loss would leave; no caller has been told that
it was done.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agl_core.errors import StoreDataError

if TYPE_CHECKING:
    from agl_store_sqlite.writer import Committed

__all__ = ["Flusher"]

# Some systems have no fdatasync; a log that grows needs its size on disk, which both see to.
_sync = getattr(os, "fdatasync", os.fsync)


class Flusher:
    """Syncs the log of a database and passes on whose writes are safe.

    Args:
        path: The database file, for errors.
        log: The log beside it. SQLite takes its locks on the other two files, so that closing
            this one here lets go of none.

    Raises:
        OSError: The log cannot be opened.
    """

    def __init__(self, path: str, log: str) -> None:
        self._path = path
        self._file = os.open(log, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        self._inbox: queue.SimpleQueue[Committed | None] = queue.SimpleQueue()
        self.failure: StoreDataError | None = None
        self._thread = threading.Thread(target=self._run, name="agl-sqlite-sync", daemon=True)

    def start(
        self, flushed: Callable[[Sequence[Committed]], None], rested: Callable[[], None]
    ) -> None:
        """Begin.

        Args:
            flushed: Called with groups whose writes are safe, or have failed, in order.
            rested: Called when everything handed in has been passed on.
        """
        self._flushed, self._rested = flushed, rested
        self._thread.start()

    def put(self, group: Committed) -> None:
        """Sync a group; in the order of the commits, without waiting."""
        self._inbox.put(group)

    def close(self) -> None:
        """Sync what was handed in, then close the log."""
        if self._thread.ident is not None:
            self._inbox.put(None)
            self._thread.join()
        os.close(self._file)

    def _run(self) -> None:
        while True:
            first = self._inbox.get()
            if first is None:
                return
            groups = [first]
            more = True
            while more:
                try:
                    group = self._inbox.get_nowait()
                except queue.Empty:
                    break
                more = group is not None
                if group is not None:
                    groups.append(group)
            self._flush(groups)
            self._rested()
            if not more:
                return

    def _flush(self, groups: Sequence[Committed]) -> None:
        if self.failure is None and any(group.changed for group in groups):
            try:
                _sync(self._file)
            except OSError as error:
                # After a failed sync the system may report the next one as done although the data
                # is gone, so nothing is called safe until somebody has looked at the disk.
                self.failure = StoreDataError(
                    f"{self._path}: the disk cannot keep what was written ({error}); what was "
                    "acknowledged is safe; open the store again once the disk is well"
                )
        if self.failure is not None:
            for group in groups:
                if group.changed:
                    group.fail(self.failure)
        self._flushed(groups)
