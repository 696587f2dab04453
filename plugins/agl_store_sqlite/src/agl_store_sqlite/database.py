"""One open database file of one process: its writer, its readers, and its settings."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from agl_core.errors import StoreDataError
from agl_store_kit import Notice
from agl_store_sqlite.config import SqliteConfig
from agl_store_sqlite.errors import naming
from agl_store_sqlite.remote import RemoteChanges
from agl_store_sqlite.schema import migrate
from agl_store_sqlite.writer import Writer

__all__ = ["Database"]

T = TypeVar("T")

_READERS: Final = 4
"""Queries at a time; a dashboard asks about as many."""
_WRITER_CACHE_KIB: Final = 32 * 1024
"""SQLite's own 2 MB hold too few pages of the indexes that each write changes."""
_READER_CACHE_KIB: Final = 16 * 1024
"""Page caches of the connections: with four readers at most 96 MB, for a file of any size.

The file is not mapped into memory (``PRAGMA mmap_size``): each connection's mapping would count as
memory of the process, and an I/O error on a mapped page kills the process instead of failing the
read (https://www.sqlite.org/mmap.html)."""
_PAGE_BYTES: Final = 8192
"""Size of a page of a new file. A span of 6 kB fits into one; with SQLite's default of 4096 it is
split, and a batch of 50 such spans takes 10 to 20 % more time to read and to write. Small changes
cost the same."""
_CHECKPOINT_PAGES: Final = 4000
"""Length of the log (32 MB) at which the commit that reaches it copies the log into the file.

SQLite's default of 1000 pages copies and syncs the file four times as often."""


class Database:
    """Thread-safe; not usable in a forked child.

    Args:
        config: The store's configuration.
        publish: Called with the notices of each commit, of this process and, while
            :attr:`remote` listens, of other processes; in a thread of this object.

    Raises:
        StoreDataError: The file cannot be opened or used.
        StoreUnavailableError: Another process holds its lock for longer than ``busy_seconds``.
    """

    def __init__(self, config: SqliteConfig, publish: Callable[[Sequence[Notice]], None]) -> None:
        self.config = config
        self.path = str(Path(config.path).expanduser().absolute())
        self.pid = os.getpid()
        self._closed = False
        self._local = threading.local()
        self._readers: set[sqlite3.Connection] = set()
        if Path(self.path).exists() and not Path(self.path).is_file():
            # Opening a named pipe waits for somebody to write to it.
            raise StoreDataError(f"{self.path} is not a file; choose another path")
        with naming(self.path):
            connection = self._connect(_WRITER_CACHE_KIB)
            try:
                migrate(connection, self.path)
                connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
                self.remote = RemoteChanges(self, publish)
                self.writer = Writer(
                    connection,
                    self.path,
                    durability=config.durability,
                    busy_seconds=config.busy_seconds,
                    remote=self.remote,
                )
            except BaseException:
                connection.close()
                raise
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="agl-sqlite-read")

    def _connect(self, cache_kib: int) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=self.config.busy_seconds,
            isolation_level=None,
            # close() runs in another thread than the one that uses the connection.
            check_same_thread=False,
            cached_statements=256,
        )
        # Takes effect in a new file only; a file of before keeps its size.
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            connection.close()
            raise StoreDataError(
                f"{self.path}: SQLite cannot share memory between processes here, which its "
                "write-ahead log needs; choose a path on a local file system"
            )
        # Commits are not synced by SQLite: the writer syncs the log after the commit.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{cache_kib}")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection

    # -- reading ---------------------------------------------------------------------------------

    def look(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run a short read in the calling thread: a few rows by key."""
        with naming(self.path):
            return read(self._reader())

    async def read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run a read of any size in a reader thread."""
        if self._closed:
            raise self._is_closed()
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.look, read)

    def _reader(self) -> sqlite3.Connection:
        reader: _Reader | None = getattr(self._local, "reader", None)
        if reader is None or self._closed:
            if self._closed:
                raise self._is_closed()
            connection = self._connect(_READER_CACHE_KIB)
            connection.execute("PRAGMA query_only = 1")
            self._local.reader = reader = _Reader(connection, self._readers)
        return reader.connection

    # -- the file --------------------------------------------------------------------------------

    def compact(self) -> bool:
        """Rewrite the file without its free pages, and empty the log beside it; blocks.

        Returns:
            Whether it was done. It is not if another store has the file open: SQLite's lock is
            held throughout, minutes for a large file, and the other's writes would fail.
        """
        with naming(self.path), self.writer.alone() as alone:
            if not alone:
                return False
            connection = self._connect(_READER_CACHE_KIB)
            try:
                # The copy is as large as what the file holds.
                connection.execute("PRAGMA temp_store = FILE")
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.close()
        return True

    def close(self) -> None:
        """Finish the writes that were submitted, then close the file. Idempotent; any thread."""
        if self._closed:
            return
        self._closed = True
        self.remote.close()
        self.writer.close()
        self.remote.close_socket()
        self._pool.shutdown()
        for connection in list(self._readers):
            _close(connection, self._readers)

    def _is_closed(self) -> StoreDataError:
        return StoreDataError(f"{self.path}: the store is closed")


class _Reader:
    """The connection of a thread, which is closed when the thread ends.

    Args:
        connection: The connection.
        readers: All open connections of the file; this one is added.
    """

    def __init__(self, connection: sqlite3.Connection, readers: set[sqlite3.Connection]) -> None:
        self.connection = connection
        self._readers = readers
        self._pid = os.getpid()
        readers.add(connection)

    def __del__(self) -> None:
        # In a forked child the parent's other threads end. Their connections must stay open there.
        if os.getpid() == self._pid:
            _close(self.connection, self._readers)


def _close(connection: sqlite3.Connection, readers: set[sqlite3.Connection]) -> None:
    """Close a connection, unless another thread closes it."""
    try:
        readers.remove(connection)
    except KeyError:
        return
    connection.close()
