"""One writer thread with group commit, readers beside it, and who is told what was committed.

A write is a function of a :class:`~agl_store_sqlite.transaction.Transaction`. The writer takes all
that are waiting, runs them in one transaction, commits once and then answers them all: a busy store
pays for one sync of the disk per batch instead of one per call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from agl_core.errors import AglError, StoreDataError
from agl_store_sqlite.config import SqliteConfig
from agl_store_sqlite.errors import naming, translated
from agl_store_sqlite.listeners import Listeners
from agl_store_sqlite.peers import Peers
from agl_store_sqlite.schema import migrate
from agl_store_sqlite.tables import Tables
from agl_store_sqlite.transaction import Transaction

__all__ = ["Engine"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

_BATCH: Final = 256
_READERS: Final = 4
_CACHE_KIB: Final = 32 * 1024
_MMAP_BYTES: Final = 256 * 1024 * 1024
_CHECKPOINT_PAGES: Final = 4000
"""Length of the log (16 MB) at which it is copied into the file, which takes two syncs."""


@dataclass(eq=False, slots=True)
class _Write(Generic[T]):
    """A write that waits for its batch."""

    operation: Callable[[Transaction], T]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[T]


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
            except BaseException:
                self._connection.close()
                raise
        self.listeners = Listeners()
        self._inbox: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="agl-sqlite-read")
        self._closed = False
        self._writer = threading.Thread(
            target=self._write_all, name="agl-sqlite-write", daemon=True
        )
        self._writer.start()
        self._peers.start()

    def _connect(self, *, check_same_thread: bool = True) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=self.config.busy_seconds,
            isolation_level=None,
            check_same_thread=check_same_thread,
            cached_statements=256,
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self.config.durability.upper()}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"PRAGMA mmap_size = {_MMAP_BYTES}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        return connection

    def close(self) -> None:
        """Finish what was handed in, then close the file. Idempotent; any thread."""
        if self._closed:
            return
        self._closed = True
        self._inbox.put(None)
        self._writer.join()
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
    ) -> T:
        """Run a write in the next batch; return its result once it is on disk.

        Args:
            operation: Runs in the writer thread, perhaps twice: it must have no effect outside its
                transaction.
            undo: Takes the operation back, if the caller was cancelled before the result reached
                it; without it the operation stands.

        Raises:
            AglError: What the operation raised; then it has written nothing.
        """
        if self._closed:
            raise StoreDataError(f"{self.path}: the store is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._inbox.put(_Write(operation, loop, answer))
        if undo is None:
            return await answer
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(partial(self._take_back, loop, undo))
            raise

    def _take_back(
        self,
        loop: asyncio.AbstractEventLoop,
        undo: Callable[[Transaction, Any], None],
        answer: asyncio.Future[Any],
    ) -> None:
        if not answer.cancelled() and answer.exception() is None and answer.result():
            result = answer.result()
            self._inbox.put(_Write(lambda tx: undo(tx, result), loop, loop.create_future()))

    def _write_all(self) -> None:
        while True:
            batch = [self._inbox.get()]
            while len(batch) < _BATCH:
                try:
                    batch.append(self._inbox.get_nowait())
                except queue.Empty:
                    break
            writes = [write for write in batch if write is not None]
            if writes:
                self._write_batch(writes)
            if len(writes) < len(batch):
                self._peers.stop(self._connection)
                return

    def _write_batch(self, writes: Sequence[_Write[Any]]) -> None:
        tx = Transaction(self._connection)
        try:
            tx.execute("BEGIN IMMEDIATE")
            tx.now = time.time()
            outcomes = [self._run_one(tx, write) for write in writes]
            tx.write_counters()
            others = self._peers.log(tx)
            tx.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if len(writes) > 1 and not isinstance(error, sqlite3.OperationalError):
                # One of them failed after it had written; alone, each takes back only itself.
                for write in writes:
                    self._write_batch([write])
                return
            failure = translated(error, self.path) if isinstance(error, sqlite3.Error) else error
            if not isinstance(failure, AglError):
                logger.error("A write to %s failed", self.path, exc_info=failure)
            _answer(writes, [_Failure(failure)] * len(writes))
            return
        _answer(writes, outcomes)
        self.listeners.tell(tx.told, tx.now)
        if tx.queue_changed:
            self.listeners.work_arrived(tx.queue_length(self.listeners.waiting_for_work))
        self._peers.wake(others)

    def _run_one(self, tx: Transaction, write: _Write[Any]) -> Any:
        before = tx.connection.total_changes
        try:
            return write.operation(tx)
        except Exception as error:
            if tx.connection.total_changes != before or isinstance(error, sqlite3.Error):
                raise
            return _Failure(error)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    # -- other processes -------------------------------------------------------------------------

    def _heard(self) -> None:
        """Called by the peers' thread when another process has committed."""
        with naming(self.path):
            tables = self._reader()
            for told, moment in self._peers.unread(tables):
                self.listeners.tell([told], moment)
            if self.listeners.waiting_for_work:
                self.listeners.work_arrived(tables.queue_length(self.listeners.waiting_for_work))


class _Failure:
    """An operation's outcome that is an error."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _answer(writes: Sequence[_Write[Any]], outcomes: Sequence[Any]) -> None:
    """Hand the outcomes over, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for write, outcome in zip(writes, outcomes, strict=True):
        by_loop.setdefault(write.loop, []).append((write.answer, outcome))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, answers)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            logger.debug("A write's caller is gone; the write stands")


def _resolve(answers: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for answer, outcome in answers:
        if answer.done():  # the caller was cancelled
            continue
        if isinstance(outcome, _Failure):
            answer.set_exception(outcome.error)
        else:
            answer.set_result(outcome)
