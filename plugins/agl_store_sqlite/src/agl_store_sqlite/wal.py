"""The write-ahead log as a file: syncing it, and how long it is.

With ``synchronous = FULL`` SQLite syncs the log within COMMIT, and whoever commits waits for the
disk. Here a commit writes the log without a sync (``synchronous = NORMAL``), and the writer syncs
it before the group's callers are answered: at once where the disk is fast, in a thread where it is
not. One sync covers everything committed before it began, by any process: the log is one file,
written from front to back. Before SQLite copies the log into the database, and before it begins the
log anew, it syncs by itself, so what is committed is in one of the two synced files at any time
(https://www.sqlite.org/wal.html, "Checkpointing" and "Performance").

What a reader sees may be a sync ahead of what power loss would leave; no caller has been told that
it was done.
"""

from __future__ import annotations

import os
import time
from typing import Final

from agl_core.errors import StoreDataError

__all__ = ["WriteAheadLog"]

# Some systems have no fdatasync; a log that grows needs its size on disk, which both see to.
_sync = getattr(os, "fdatasync", os.fsync)

_FAST_SECONDS: Final = 0.001
"""A sync of less than this costs an event loop less than to have a thread do it: a thread that is
done waits for the interpreter, in a busy process up to 5 ms."""
_PATIENCE: Final = 100.0
"""After a slower one no loop syncs for so many times its length: at most 1 % of a loop's time goes
into finding out that the disk is still slow."""

_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_PAGE_BYTES: Final = slice(8, 12)
_SALTS: Final = slice(16, 24)
_FRAME_SALTS: Final = slice(8, 16)
"""Layout of the log: https://www.sqlite.org/fileformat2.html#the_write_ahead_log"""


class WriteAheadLog:
    """The log of a database that is open. Thread-safe.

    Args:
        path: The database file, for errors.
        log: The log beside it. SQLite takes its locks on the other two files, so that closing
            this one here lets go of none.

    Raises:
        StoreDataError: The log cannot be opened.
    """

    def __init__(self, path: str, log: str) -> None:
        self._path = path
        try:
            self._file = os.open(log, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise StoreDataError(f"{path}: its log cannot be opened ({error})") from error
        self._slow_until = 0.0
        self.failure: StoreDataError | None = None
        """Why the log cannot be synced any more; None while it can."""

    def sync(self, *, in_loop: bool) -> None:
        """Put on the disk what was committed; blocks.

        Args:
            in_loop: Whether an event loop waits for it.

        Raises:
            StoreDataError: The disk failed, now or before.
        """
        if self.failure is None:
            began = time.monotonic()
            try:
                _sync(self._file)
            except OSError as error:
                # After a failed sync the system may report the next one as done although the data
                # is gone, so nothing is called safe until somebody has looked at the disk.
                self.failure = StoreDataError(
                    f"{self._path}: the disk cannot keep what was written ({error}); what was "
                    "acknowledged is safe; open the store again once the disk is well"
                )
            ended = time.monotonic()
            if ended - began < _FAST_SECONDS:
                self._slow_until = 0.0
            elif in_loop:  # elsewhere much of the time may have been a wait for the interpreter
                self._slow_until = ended + _PATIENCE * (ended - began)
        if self.failure is not None:
            raise self.failure

    def syncs_fast(self) -> bool:
        """Tell whether an event loop may sync the log itself."""
        return time.monotonic() >= self._slow_until

    def has_frames(self, number: int) -> bool:
        """Tell whether the log holds so many pages; reads two places of the file.

        A log that SQLite began anew keeps its length, but the frames it wrote since carry the
        header's new salts.
        """
        header = os.pread(self._file, _HEADER_BYTES, 0)
        if len(header) < _HEADER_BYTES:
            return False
        page_bytes = int.from_bytes(header[_PAGE_BYTES], "big")
        position = _HEADER_BYTES + (number - 1) * (_FRAME_HEADER_BYTES + page_bytes)
        frame = os.pread(self._file, _FRAME_HEADER_BYTES, position)
        return frame[_FRAME_SALTS] == header[_SALTS]

    def close(self) -> None:
        os.close(self._file)
