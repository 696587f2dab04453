"""The writer thread: group commit, and who is answered when.

A write is a function of a :class:`~agl_store_sqlite.transaction.Transaction`. The writer runs all
that wait in one transaction, so that a busy store pays for one commit per group instead of one per
call. With full durability a group is answered once :mod:`agl_store_sqlite.flushing` has synced it;
while the disk does that, the event loop takes requests and the next group gathers.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar

from agl_core.errors import AglError, StoreDataError
from agl_store_sqlite.errors import translated
from agl_store_sqlite.flushing import Flusher
from agl_store_sqlite.transaction import Transaction

__all__ = ["Committed", "Writer"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

_GROUP: Final = 256


@dataclass(eq=False, slots=True)
class _Write(Generic[T]):
    """A write that waits for its group."""

    operation: Callable[[Transaction], T]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[T]


class _Failure:
    """An operation's outcome that is an error."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


@dataclass(eq=False, slots=True)
class Committed:
    """A group whose transaction has ended, and what is to be told of it."""

    writes: Sequence[_Write[Any]]
    outcomes: Sequence[Any]
    tx: Transaction | None = None
    """The transaction; None if it wrote nothing."""
    others: Sequence[int] = ()
    """Ports of the other processes that have the file open."""
    available: int = 0
    """How many of those who waited for work at the commit may look for it."""
    changed: bool = False

    def fail(self, error: Exception) -> None:
        """Make an error the outcome of every write."""
        self.outcomes = [_Failure(error)] * len(self.writes)
        self.tx = None


class Writer:
    """Runs the writes of one process, one group after the other. Thread-safe.

    Args:
        connection: The connection to write with; the writer's alone until it is closed.
        path: The file's name, for errors.
        flusher: Syncs what was committed; None if a commit need not be synced.
        log: Called inside every transaction; returns the ports of the other processes.
        waiting: Returns how many callers of this process wait for work.
        tell: Called after a group was answered, in the order of the commits.
        stopped: Called when everybody has been answered, by who closes the writer.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        flusher: Flusher | None,
        *,
        log: Callable[[Transaction], list[int]],
        waiting: Callable[[], int],
        tell: Callable[[Committed], None],
        stopped: Callable[[sqlite3.Connection], None],
    ) -> None:
        self._connection = connection
        self._path = path
        self._flusher = flusher
        self._log = log
        self._waiting = waiting
        self._tell = tell
        self._stopped = stopped
        self._closed = False
        self._syncing = False
        # Holds writes; True when the flusher has come to rest; None when no more will come.
        self._inbox: queue.SimpleQueue[_Write[Any] | Literal[True] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="agl-sqlite-write", daemon=True)
        self._thread.start()
        if flusher is not None:
            flusher.start(self._flushed, partial(self._inbox.put, True))

    def close(self) -> None:
        """Finish what was handed in; idempotent."""
        if not self._closed:
            self._closed = True
            self._inbox.put(None)
            self._thread.join()
            if self._flusher is not None:
                self._flusher.close()
            self._stopped(self._connection)

    async def write(
        self,
        operation: Callable[[Transaction], T],
        undo: Callable[[Transaction, T], None] | None = None,
    ) -> T:
        """Run a write in the next group; see :meth:`agl_store_sqlite.engine.Engine.write`."""
        if self._closed:
            raise StoreDataError(f"{self._path}: the store is closed")
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

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        open_ = True
        while open_:
            group, open_ = self._gather()
            if group:
                self._write_group(group)

    def _gather(self) -> tuple[list[_Write[Any]], bool]:
        """Take what waits, at least one; while the disk syncs, also what comes meanwhile.

        Returns:
            The group, and whether more can come.
        """
        group: list[_Write[Any]] = []
        while len(group) < _GROUP:
            try:
                item = self._inbox.get(block=not group or self._syncing)
            except queue.Empty:
                break
            if item is None:
                return group, False
            if item is True:
                self._syncing = False
            else:
                group.append(item)
        return group, True

    def _write_group(self, writes: Sequence[_Write[Any]]) -> None:
        if self._flusher is not None and self._flusher.failure is not None:
            self._hand_over(Committed(writes, [_Failure(self._flusher.failure)] * len(writes)))
            return
        tx = Transaction(self._connection)
        before = self._connection.total_changes
        try:
            tx.execute("BEGIN IMMEDIATE")
            tx.now = time.time()
            outcomes = [self._run_one(tx, write) for write in writes]
            tx.write_counters()
            others = self._log(tx)
            tx.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if len(writes) > 1 and not isinstance(error, sqlite3.OperationalError):
                # One of them failed after it had written; alone, each takes back only itself.
                for write in writes:
                    self._write_group([write])
                return
            failure = translated(error, self._path) if isinstance(error, sqlite3.Error) else error
            if not isinstance(failure, AglError):
                logger.error("A write to %s failed", self._path, exc_info=failure)
            self._hand_over(Committed(writes, [_Failure(failure)] * len(writes)))
            return
        # Who comes to wait after this look will see the commit.
        waiting = self._waiting() if tx.queue_changed else 0
        available = tx.queue_length(waiting) if waiting else 0
        changed = self._connection.total_changes != before
        self._hand_over(Committed(writes, outcomes, tx, others, available, changed))

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

    # -- answering -------------------------------------------------------------------------------

    def _hand_over(self, group: Committed) -> None:
        if self._flusher is None:
            self._flushed([group])
        else:
            # Also one that wrote nothing: what it saw may still wait for its sync.
            self._syncing = True
            self._flusher.put(group)

    def _flushed(self, groups: Sequence[Committed]) -> None:
        _answer(groups)
        for group in groups:
            if group.tx is not None:
                self._tell(group)


def _answer(groups: Iterable[Committed]) -> None:
    """Hand the outcomes over, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for group in groups:
        for write, outcome in zip(group.writes, group.outcomes, strict=True):
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
