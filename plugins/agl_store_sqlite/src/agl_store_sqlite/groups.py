"""A group of writes: one transaction, and the outcome of each."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from agl_core.errors import AglError
from agl_store_sqlite.errors import is_busy, translated
from agl_store_sqlite.known import Known
from agl_store_sqlite.transaction import Transaction

__all__ = ["Committed", "Committer", "Write", "answer_all"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

_SHORTEST_PAUSE: Final = 0.0001
_LONGEST_PAUSE: Final = 0.005
"""Seconds between two looks whether a foreign lock is free."""


@dataclass(eq=False, slots=True)
class Write(Generic[T]):
    """A write that waits for its group."""

    operation: Callable[[Transaction], T]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[T]
    records: int
    """About how many records it touches."""
    lasting: bool
    """Whether it must survive power loss by itself."""
    undo: Callable[[Transaction, T], None] | None
    """Takes it back if nobody was there to be told of it."""


class _Failure:
    """An operation's outcome that is an error."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


@dataclass(eq=False, slots=True)
class Committed:
    """Writes whose transaction has ended, and what is to be told of it."""

    writes: Sequence[Write[Any]]
    outcomes: Sequence[Any]
    tx: Transaction | None = None
    """The transaction; None if it wrote nothing."""
    needs_sync: bool = False
    """Whether a caller waits for the disk."""

    @classmethod
    def failed(cls, writes: Sequence[Write[Any]], error: BaseException) -> Committed:
        return cls(writes, [_Failure(error)] * len(writes))


class Committer:
    """Runs groups of writes, each in a transaction. For one thread at a time.

    Args:
        connection: To write with; nobody else uses it, and it does not wait for locks itself.
        path: The file's name, for errors.
        busy_seconds: How long a patient group waits for a foreign lock, in seconds.
        seal: Called at the end of every transaction, inside it.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        busy_seconds: float,
        seal: Callable[[Transaction], None],
    ) -> None:
        self._connection = connection
        self._path = path
        self._busy_seconds = busy_seconds
        self._seal = seal
        self._known = Known()

    def run(self, writes: Sequence[Write[Any]], *, patient: bool) -> list[Committed] | None:
        """Run writes in one transaction, or each alone if that fails because of one of them.

        Args:
            writes: At least one.
            patient: Whether to wait for what would keep the caller; False leaves it undone.

        Returns:
            What was committed, in order. None if it takes patience; then nothing was done.
        """
        connection = self._connection
        tx = Transaction(connection, self._known)
        before = connection.total_changes
        try:
            self._begin(self._busy_seconds if patient else 0.0)
            tx.now = time.time()
            self._known.check(connection)
            outcomes = [_run_one(tx, write) for write in writes]
            self._seal(tx)
            tx.execute("COMMIT")
        except BaseException as error:
            self._known.clear()
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not isinstance(error, Exception):
                raise
            if not patient and (is_busy(error) or len(writes) > 1):
                return None
            if len(writes) > 1 and not isinstance(error, sqlite3.OperationalError):
                # One of them failed after it had written; alone, each takes back only itself.
                alone = (self.run([write], patient=True) for write in writes)
                return [part for parts in alone for part in parts or ()]
            return [Committed.failed(writes, self._translated(error))]
        changed = connection.total_changes != before
        lasting = changed and any(write.lasting for write in writes)
        return [Committed(writes, outcomes, tx, lasting)]

    def _begin(self, seconds: float) -> None:
        """Take the lock; another process mostly has it for less than a millisecond."""
        deadline = time.monotonic() + seconds
        pause = _SHORTEST_PAUSE
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
                # Nothing tells that a lock is free, and SQLite looks every few milliseconds.
                time.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
            else:
                return

    def _translated(self, error: Exception) -> Exception:
        failure = translated(error, self._path) if isinstance(error, sqlite3.Error) else error
        if not isinstance(failure, AglError):
            logger.error("A write to %s failed", self._path, exc_info=failure)
        return failure


def _run_one(tx: Transaction, write: Write[Any]) -> Any:
    before = tx.connection.total_changes
    try:
        return write.operation(tx)
    except Exception as error:
        if tx.connection.total_changes != before or isinstance(error, sqlite3.Error):
            raise
        return _Failure(error)


def answer_all(group: Committed, untold: Callable[[Write[Any], Any], None]) -> None:
    """Hand the outcomes over from any thread, with one wake-up per event loop.

    Args:
        group: Writes and their outcomes.
        untold: Called in its loop with a write whose caller was cancelled meanwhile, and with its
            result.
    """
    running = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Write[Any], Any]]] = {}
    for write, outcome in zip(group.writes, group.outcomes, strict=True):
        by_loop.setdefault(write.loop, []).append((write, outcome))
    for loop, answers in by_loop.items():
        if loop is running:
            _resolve(answers, untold)
            continue
        try:
            loop.call_soon_threadsafe(_resolve, answers, untold)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            logger.debug("A write's caller is gone; the write stands")


def _resolve(
    answers: Sequence[tuple[Write[Any], Any]], untold: Callable[[Write[Any], Any], None]
) -> None:
    for write, outcome in answers:
        failed = isinstance(outcome, _Failure)
        if write.answer.cancelled():
            if not failed:
                untold(write, outcome)
        elif failed:
            write.answer.set_exception(outcome.error)
        else:
            write.answer.set_result(outcome)
