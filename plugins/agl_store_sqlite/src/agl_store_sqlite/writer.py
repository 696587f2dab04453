"""Group commit: one thread writes, and all writes that wait share one transaction.

A busy store thus pays for one commit and one sync per group instead of one per call. SQLite's
statements, its wait for the lock of another process and the sync block only this thread.

Durability ``full`` is a commit with ``synchronous = NORMAL`` and then a sync of the log, before the
group's callers get their results. ``synchronous = FULL`` would sync within COMMIT, while this
process holds the write lock. With the sync after it 16 processes write 3.2 times as often
(1,271 instead of 400 writes per second; ``tests/benchmark/bench_sqlite_choices.py``).

One sync covers everything that any process committed before it began: the log is one file, written
from front to back. SQLite itself syncs the log before it copies it into the database, and the
database before it starts a new log, so committed data is always in one of two synced files
(https://www.sqlite.org/wal.html, "Checkpointing"). A reader may see a write that power loss would
undo; its caller has not got a result yet.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from agl_core.errors import AglError, StoreDataError
from agl_core.waits import SILENT_SECONDS
from agl_store_sqlite.errors import FILE_ERRORS, is_busy, translated
from agl_store_sqlite.locks import share, take_alone
from agl_store_sqlite.transaction import Transaction

if TYPE_CHECKING:
    from agl_store_sqlite.remote import RemoteChanges

__all__ = ["Writer"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Some systems have no fdatasync. Both functions also sync the size of a file that grew.
_sync = getattr(os, "fdatasync", os.fsync)

_GROUP: Final = 256
"""Most writes that share a transaction."""


@dataclass(eq=False, slots=True)
class _Write(Generic[T]):
    """A submitted write."""

    operation: Callable[[Transaction], T]
    result: asyncio.Future[T] | None
    """None if no caller waits."""
    synced: bool
    undo: Callable[[Transaction, T], None] | None


@dataclass(frozen=True, slots=True)
class _Failure:
    """Outcome of a write that raised."""

    error: BaseException


class Writer:
    """Runs the writes of one process in one thread. Thread-safe.

    Args:
        connection: The connection to write with. It belongs to the writer, which closes it.
        path: The database file, for errors.
        durability: ``full`` or ``normal``; see :class:`~agl_store_sqlite.config.SqliteConfig`.
        busy_seconds: How long a write waits for the lock of another process.
        remote: Passes changes on to waiting callers and to other processes.

    Raises:
        StoreDataError: The log beside the file cannot be opened.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        *,
        durability: str,
        busy_seconds: float,
        remote: RemoteChanges,
    ) -> None:
        self._connection = connection
        self._path = path
        self._full = durability == "full"
        self._busy_seconds = busy_seconds
        self._wait_for_lock(min(busy_seconds, SILENT_SECONDS))
        self._remote = remote
        self._log, self._file = _open_log(connection, path)
        self._running = threading.Lock()
        self._identity = _identity(self._file)
        self._failure: StoreDataError | None = None
        self._closed = False
        self._closing = threading.Lock()
        self._inbox: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="agl-sqlite-write", daemon=True)
        self._thread.start()

    async def write(
        self,
        operation: Callable[[Transaction], T],
        *,
        synced: bool = True,
        undo: Callable[[Transaction, T], None] | None = None,
    ) -> T:
        """Run a write in the next group; return its result once the group is on the disk.

        Args:
            operation: Runs in the writer's thread, perhaps twice: it must have no effect outside
                its transaction.
            synced: Whether durability ``full`` waits for the disk. If False, the write is on the
                disk after the next write that waits.
            undo: Takes the operation back if the caller was cancelled before it got the result.
                Without it a cancelled write stands.

        Raises:
            AglError: The operation raised it, or the file cannot be written. Nothing was changed.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        write = _Write(operation, result, synced, undo)
        self._submit(write)
        try:
            return await result
        except asyncio.CancelledError:
            if result.done() and not result.cancelled() and result.exception() is None:
                self._take_back(write, result.result())  # cancelled after the result was set
            raise

    def post(self, operation: Callable[[Transaction], object]) -> None:
        """Run a write that no caller waits for; a failure is logged. Any thread."""
        self._submit(_Write(operation, None, False, None))

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Hold back all writes of this process, and keep other stores from opening the file.

        Yields:
            Whether that worked; False if another store has the file open.
        """
        with self._running:
            if self._closed:
                raise self._is_closed()
            alone = take_alone(self._log)
            try:
                yield alone
            finally:
                share(self._log, self._path)

    def _submit(self, write: _Write[Any]) -> None:
        with self._closing:  # nothing is submitted after close() has ended the queue
            if self._closed:
                raise self._is_closed()
            self._inbox.put(write)

    def _take_back(self, write: _Write[Any], result: Any) -> None:
        undo = write.undo
        if undo is None or not result:
            return
        try:
            self.post(lambda tx: undo(tx, result))
        except StoreDataError as error:
            logger.warning("A write of a cancelled caller stands: %s", error)

    def close(self) -> None:
        """Finish what was submitted, then close the connection. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._inbox.put(None)
        self._thread.join()
        self._connection.close()
        with self._running:  # see alone()
            os.close(self._log)

    def _is_closed(self) -> StoreDataError:
        return StoreDataError(f"{self._path}: the store is closed")

    # -- in the writer's thread ------------------------------------------------------------------

    def _serve(self) -> None:
        last = False
        while not last:
            group = [self._inbox.get()]
            while len(group) < _GROUP and not self._inbox.empty():
                group.append(self._inbox.get())
            last = group[-1] is None
            if writes := [write for write in group if write is not None]:
                with self._running:
                    self._run(writes)

    def _run(self, writes: Sequence[_Write[Any]]) -> None:
        """Run writes in one transaction, or each alone if one fails after it has changed rows."""
        if self._failure is not None:
            self._fail(writes, self._failure)
            return
        tx = Transaction(self._connection)
        before = self._connection.total_changes
        try:
            self._begin(tx)
            tx.now = time.time()
            outcomes = [_run_one(tx, write) for write in writes]
            tx.write_counters()
            peers = self._remote.log(tx)
            tx.execute("COMMIT")
        except Exception as error:
            if not self._roll_back(tx):
                self._fail(writes, self._failure or error)
            elif len(writes) == 1 or isinstance(error, sqlite3.OperationalError):
                # The file itself fails (busy, full): each write alone would fail, too.
                self._fail(writes, self._named(error))
            else:
                for write in writes:
                    self._run([write])
            return
        changed = self._connection.total_changes != before
        if changed and self._is_removed():
            self._failure = StoreDataError(
                f"{self._path}: the file or its log was removed or replaced while the store had it "
                "open; nothing can be stored any more; put the file back and open the store again"
            )
            logger.error("%s", self._failure)
            self._fail(writes, self._failure)
            return
        if changed and self._full and any(write.synced for write in writes):
            try:
                _sync(self._log)
            except OSError as error:
                # After a failed sync the kernel may drop the dirty pages and report the next sync
                # as done (https://lwn.net/Articles/752063/), so no later write would be safe.
                self._failure = StoreDataError(
                    f"{self._path}: the disk cannot keep what was written ({error}); writes that "
                    "were waited for before are safe; open the store again once the disk is well"
                )
                logger.error("%s", self._failure)
                self._fail(writes, self._failure)
                return
        # Before the answer, so that a caller finds what its write has caused.
        self._remote.publish(tx.notices)
        self._answer(writes, outcomes)
        self._remote.wake(peers)

    def _begin(self, tx: Transaction) -> None:
        """Begin a transaction; waits for the lock of another process, and says so after a while."""
        try:
            tx.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            left = self._busy_seconds - min(self._busy_seconds, SILENT_SECONDS)
            if not is_busy(error) or not left:
                raise
            logger.warning("Waiting for %s: another process holds its lock", self._path)
            self._wait_for_lock(left)
            try:
                tx.execute("BEGIN IMMEDIATE")
            finally:
                self._wait_for_lock(SILENT_SECONDS)

    def _wait_for_lock(self, seconds: float) -> None:
        """Let statements wait for the lock of another process for so long."""
        self._connection.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")

    def _roll_back(self, tx: Transaction) -> bool:
        """Return whether the transaction that failed is over; no write is safe otherwise."""
        try:
            if self._connection.in_transaction:
                tx.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._failure = StoreDataError(
                f"{self._path}: a transaction that failed cannot be rolled back ({error}); open "
                "the store again"
            )
            logger.error("%s", self._failure)
        return self._failure is None

    def _is_removed(self) -> bool:
        # SQLite goes on writing to a file that has no name any more.
        return _identity(self._file) != self._identity or os.fstat(self._log).st_nlink == 0

    def _fail(self, writes: Sequence[_Write[Any]], error: Exception) -> None:
        # Each caller gets an error of its own: it adds its traceback, and perhaps notes.
        self._answer(writes, [_Failure(copy.copy(error).with_traceback(None)) for _ in writes])

    def _answer(self, writes: Sequence[_Write[Any]], outcomes: Sequence[Any]) -> None:
        """Hand the outcomes to the callers, with one wake-up per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Write[Any], Any]]] = {}
        for write, outcome in zip(writes, outcomes, strict=True):
            if write.result is not None:
                by_loop.setdefault(write.result.get_loop(), []).append((write, outcome))
            elif isinstance(outcome, _Failure):
                logger.warning("A write that no caller waits for failed: %s", outcome.error)
        for loop, answers in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._resolve, answers)
            except RuntimeError:
                logger.debug("The event loop of a write is closed; the write stands")

    def _resolve(self, answers: Sequence[tuple[_Write[Any], Any]]) -> None:
        """Set results; runs in the event loop that waits for them."""
        for write, outcome in answers:
            assert write.result is not None
            failed = isinstance(outcome, _Failure)
            if write.result.cancelled():
                if not failed:
                    self._take_back(write, outcome)
            elif failed:
                write.result.set_exception(outcome.error)
            else:
                write.result.set_result(outcome)

    def _named(self, error: Exception) -> Exception:
        failure = translated(error, self._path) if isinstance(error, FILE_ERRORS) else error
        if not isinstance(failure, AglError):
            logger.error("A write to %s failed", self._path, exc_info=failure)
        return failure


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open_log(connection: sqlite3.Connection, path: str) -> tuple[int, str]:
    # SQLite resolves links, and the log lies beside the real file. Its locks are on the other two
    # files, so closing this descriptor releases none of them.
    _, _, real_path = connection.execute("PRAGMA database_list").fetchone()
    try:
        log = os.open(f"{real_path}-wal", os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise StoreDataError(f"{path}: its log cannot be opened ({error})") from error
    try:
        share(log, path)
    except OSError as error:
        os.close(log)
        raise StoreDataError(f"{path}: its log cannot be locked ({error})") from error
    return log, real_path


def _run_one(tx: Transaction, write: _Write[Any]) -> Any:
    before = tx.connection.total_changes
    try:
        return write.operation(tx)
    except Exception as error:
        if tx.connection.total_changes != before or isinstance(error, FILE_ERRORS):
            raise  # the transaction must be rolled back
        return _Failure(error)
