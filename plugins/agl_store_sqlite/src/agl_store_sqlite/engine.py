"""One file, open in one process: a writer, readers beside it, and who is told of commits."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from agl_core.errors import AglError, StoreDataError
from agl_store_sqlite.config import SqliteConfig
from agl_store_sqlite.errors import naming
from agl_store_sqlite.listeners import Listeners
from agl_store_sqlite.peers import Peers
from agl_store_sqlite.schema import migrate
from agl_store_sqlite.tables import Tables
from agl_store_sqlite.transaction import Transaction
from agl_store_sqlite.wal import WriteAheadLog
from agl_store_sqlite.writer import Writer

__all__ = ["Engine"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

_READERS: Final = 4
_WRITER_CACHE_KIB: Final = 32 * 1024
_READER_CACHE_KIB: Final = 16 * 1024
"""Page caches of the connections: with four readers at most 96 MB, however large the file. The file
is not mapped into memory: each connection's mapping would count as memory of the process, and a
disk that fails to deliver a mapped page kills the process instead of failing the read."""


class Engine:
    """The open database of one store in one process. Thread-safe; not fork-safe.

    Args:
        config: The store's configuration.

    Raises:
        StoreDataError: The file cannot be opened or used.
        StoreUnavailableError: Another process holds it for longer than ``busy_seconds``.
    """

    def __init__(self, config: SqliteConfig) -> None:
        self.config = config
        self.path = str(Path(config.path).expanduser().absolute())
        self.pid = os.getpid()
        with naming(self.path):
            self._connection = self._connect(check_same_thread=False)
            try:
                migrate(self._connection, self.path)
                self._peers = Peers(self._connection, self.path, self._heard)
                wal = self._take_over_log()
            except BaseException:
                self._connection.close()
                raise
        self.listeners = Listeners()
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="agl-sqlite-read")
        self._closed = False
        self._writer = Writer(
            self._connection,
            self.path,
            wal,
            sync=config.durability == "full",
            busy_seconds=config.busy_seconds,
            seal=self._seal,
            alone=lambda: self._peers.alone,
            tell=self._tell,
            copy_log=self._copy_log,
        )
        self._peers.start()

    def _connect(self, *, check_same_thread: bool = True) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=self.config.busy_seconds,
            isolation_level=None,
            check_same_thread=check_same_thread,
            cached_statements=256,
        )
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            connection.close()
            raise StoreDataError(
                f"{self.path}: SQLite cannot share memory between processes here, which its "
                "write-ahead log needs; choose a path on a local file system"
            )
        connection.execute(f"PRAGMA synchronous = {self.config.durability.upper()}")
        connection.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection

    def _take_over_log(self) -> WriteAheadLog:
        """Leave waiting for locks, syncing and copying the log to the writer; return the log."""
        _, _, path = self._connection.execute("PRAGMA database_list").fetchone()
        wal = WriteAheadLog(self.path, f"{path}-wal")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._connection.execute("PRAGMA busy_timeout = 0")
        return wal

    def close(self) -> None:
        """Finish what was handed in, then close the file. Idempotent; any thread."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        self._connection.execute(f"PRAGMA busy_timeout = {int(self.config.busy_seconds * 1000)}")
        self._peers.stop(self._connection)
        self._pool.shutdown()
        with self._readers_lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()
        self._connection.close()
        self.listeners.close()

    def compact(self) -> None:
        """Rewrite the file without its holes, and empty the log beside it; blocks."""
        with naming(self.path):
            connection = self._connect()
            try:
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.close()

    # -- reading ---------------------------------------------------------------------------------

    def look(self, read: Callable[[Tables], T]) -> T:
        """Run a short read in the calling thread: a few rows by key."""
        with naming(self.path):
            return read(self._reader())

    async def read(self, read: Callable[[Tables], T]) -> T:
        """Run a read of any size in a reader thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.look, read)

    def _reader(self) -> Tables:
        tables: Tables | None = getattr(self._local, "tables", None)
        if tables is None:
            if self._closed:
                raise StoreDataError(f"{self.path}: the store is closed")
            # Closed by close(), from another thread than the one that uses it.
            connection = self._connect(check_same_thread=False)
            connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
            connection.execute("PRAGMA query_only = 1")
            tables = self._local.tables = Tables(connection)
            with self._readers_lock:
                self._readers.append(connection)
        return tables

    # -- writing ---------------------------------------------------------------------------------

    async def write(
        self,
        operation: Callable[[Transaction], T],
        undo: Callable[[Transaction, T], None] | None = None,
        *,
        records: int = 1,
        lasting: bool = True,
    ) -> T:
        """Run a write in the next group; return its result once it is on disk.

        Args:
            operation: Runs in this event loop or in the writer's thread, perhaps twice: it must
                have no effect outside its transaction.
            undo: Takes the operation back, if the caller was cancelled before the result reached
                it; without it the operation stands.
            records: About how many records the operation touches; many keep no event loop busy.
            lasting: Whether full durability waits for the disk. What does not last by itself is
                committed like everything else, and on the disk with the next write that is.

        Raises:
            AglError: What the operation raised; then it has written nothing.
        """
        return await self._writer.write(operation, undo, records=records, lasting=lasting)

    def _copy_log(self, copied: Callable[[], None]) -> None:
        def copy() -> None:
            try:
                self.look(lambda tables: tables.one("PRAGMA wal_checkpoint(PASSIVE)"))
            except AglError as error:  # nothing is lost, the log keeps it
                logger.warning("The log cannot be copied: %s", error)
            finally:
                copied()

        self._pool.submit(copy)

    def _seal(self, tx: Transaction) -> None:
        """End a transaction: what was counted, and who is to be told."""
        tx.write_counters()
        tx.others = self._peers.log(tx)
        # Who comes to wait after this look will see the commit.
        waiting = self.listeners.waiting_for_work if tx.queue_changed else 0
        tx.available = tx.queue_length(waiting) if waiting else 0

    def _tell(self, tx: Transaction) -> None:
        """Pass on what a transaction changed, once it is safe."""
        self.listeners.tell(tx.told, tx.now)
        if tx.available:
            self.listeners.work_arrived(tx.available)
        self._peers.wake(tx.others)

    # -- other processes -------------------------------------------------------------------------

    def _heard(self) -> None:
        """Called by the peers' thread when another process has committed."""
        with naming(self.path):
            tables = self._reader()
            for told, moment in self._peers.unread(tables):
                self.listeners.tell([told], moment)
            if self.listeners.waiting_for_work:
                self.listeners.work_arrived(tables.queue_length(self.listeners.waiting_for_work))
