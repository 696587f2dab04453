"""Group commit: which writes share a transaction, where it runs, and who is answered when.

A write is a function of a :class:`~agl_store_sqlite.transaction.Transaction`. All that wait run in
one transaction, so that a busy store pays for one commit per group instead of one per call.

A group of few records runs in the event loop that asked for it: SQLite takes some microseconds per
record, less than it costs to hand a write to another thread and its outcome back. Whatever blocks
is left to a thread: waiting for a foreign lock, many records, syncing the log
(:mod:`agl_store_sqlite.wal`) where that takes long or other processes do it, too. Meanwhile the
event loop takes requests and the next group gathers. A long log is copied into the database beside
the writes; only for what came during the copy do they wait.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from agl_core.errors import StoreDataError
from agl_store_sqlite.errors import translated
from agl_store_sqlite.groups import Committed, Committer, Write, answer_all
from agl_store_sqlite.transaction import Transaction
from agl_store_sqlite.wal import WriteAheadLog

__all__ = ["FEW", "Writer"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

_GROUP: Final = 256
"""Writes that share a transaction at most."""
_ENOUGH: Final = 64
"""Writes that wait for no others to share their transaction."""
FEW: Final = 100
"""Records that an event loop reads or writes itself at most."""
_LONG_LOG_PAGES: Final = 4000
"""Length of the log (16 MB) at which it is copied into the file and begun anew."""


class Writer:
    """Runs the writes of one process, one group after the other. Thread-safe.

    Args:
        connection: The connection to write with; the writer's alone until it is closed. It
            neither waits for locks nor copies the log by itself.
        path: The file's name, for errors.
        wal: The connection's log.
        sync: Whether a caller is answered only once the log was synced.
        busy_seconds: How long to wait for a foreign lock, in seconds.
        seal: Called at the end of every transaction, inside it.
        alone: Tells whether no other process has the file open.
        tell: Called with each transaction after its writes were answered, in their order.
        copy_log: Begins to copy the log into the database on another connection, and returns; calls
            its argument when that has ended, from any thread.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        wal: WriteAheadLog,
        *,
        sync: bool,
        busy_seconds: float,
        seal: Callable[[Transaction], None],
        alone: Callable[[], bool],
        tell: Callable[[Transaction], None],
        copy_log: Callable[[Callable[[], None]], None],
    ) -> None:
        self._connection = connection
        self._path = path
        self._wal = wal
        self._sync = sync
        self._committer = Committer(connection, path, busy_seconds, seal)
        self._alone = alone
        self._tell = tell
        self._copy_log = copy_log
        self._copying = self._copied = False
        self._state = threading.Condition()
        self._waiting: list[Write[Any]] = []
        self._at_work = False
        self._closed = False
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="agl-sqlite-disk", daemon=True)
        self._thread.start()

    async def write(
        self,
        operation: Callable[[Transaction], T],
        undo: Callable[[Transaction, T], None] | None = None,
        *,
        records: int = 1,
        lasting: bool = True,
    ) -> T:
        """Run a write in the next group; see :meth:`agl_store_sqlite.engine.Engine.write`."""
        loop = asyncio.get_running_loop()
        write = Write(operation, loop, loop.create_future(), records, lasting, undo)
        self._submit(write)
        try:
            return await write.answer
        except asyncio.CancelledError:
            answer = write.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._untold(write, answer.result())  # the answer and the cancelling met
            raise

    def _untold(self, write: Write[Any], result: Any) -> None:
        """Take back what nobody was told of."""
        undo, loop = write.undo, write.loop
        if undo is not None and result and not self._closed:
            answer: asyncio.Future[None] = loop.create_future()
            self._submit(Write(lambda tx: undo(tx, result), loop, answer, 1, True, None))

    def close(self) -> None:
        """Finish what was handed in; idempotent."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            self._state.wait_for(lambda: not self._at_work)
            self._at_work = True
            writes, self._waiting = self._waiting, []
        self._inbox.put(partial(self._run_patiently, writes))
        self._inbox.put(None)
        self._thread.join()
        self._wal.close()

    # -- in the callers' event loops ---------------------------------------------------------------

    def _submit(self, write: Write[Any]) -> None:
        with self._state:
            if self._closed:
                raise StoreDataError(f"{self._path}: the store is closed")
            self._waiting.append(write)
            # Each loop takes turns for its own writes, as another one's may have ended.
            asked = len(self._waiting) > 1 and self._waiting[-2].loop is write.loop
            if self._at_work or asked:
                return
        write.loop.call_soon(self._take_turn, 1)

    def _take_turn(self, known: int) -> None:
        """Run a group, once a round of the loop brings no more writes than are known."""
        waiting = len(self._waiting)
        if known < waiting < _ENOUGH and not self._at_work:
            asyncio.get_running_loop().call_soon(self._take_turn, waiting)
            return
        writes = self._next_group()
        if not writes:
            return
        work: Callable[[], None] | None = None
        try:
            groups = None if _are_many(writes) else self._run(writes, patient=False)
            if groups is None:
                work = partial(self._run_patiently, writes)
            elif self._needs_sync(groups) and not (self._wal.syncs_fast() and self._alone()):
                work = partial(self._settle, groups)
            else:
                self._finish(self._synced(groups, in_loop=True))
                self._keep_log_short()
                if self._copied:
                    work = self._begin_log_anew
        finally:
            if work is None:
                self._rest()
            else:
                self._inbox.put(work)

    def _next_group(self) -> Sequence[Write[Any]]:
        with self._state:
            if self._at_work or not self._waiting:
                return ()
            self._at_work = True
            writes, self._waiting = self._waiting[:_GROUP], self._waiting[_GROUP:]
            return writes

    def _rest(self) -> None:
        """Let the next group have its turn, in the loop of one of its writes."""
        with self._state:
            self._at_work = False
            waiting = len(self._waiting)
            loops = dict.fromkeys(write.loop for write in self._waiting)
            self._state.notify_all()
        told = 0
        for loop in loops:
            try:
                loop.call_soon_threadsafe(self._take_turn, waiting)
                told += 1
            except RuntimeError:
                logger.debug("A write's event loop is closed; the write is done all the same")
        if loops and not told and (writes := self._next_group()):
            self._inbox.put(partial(self._run_patiently, writes))

    # -- anywhere ----------------------------------------------------------------------------------

    def _run(self, writes: Sequence[Write[Any]], *, patient: bool) -> list[Committed] | None:
        if self._wal.failure is not None:
            return [Committed.failed(writes, self._wal.failure)]
        return self._committer.run(writes, patient=patient)

    def _finish(self, groups: Sequence[Committed]) -> None:
        for group in groups:
            answer_all(group, self._untold)
            if group.tx is not None:
                self._tell(group.tx)

    def _synced(self, groups: Sequence[Committed], *, in_loop: bool) -> Sequence[Committed]:
        """Sync what was committed; return what came of it."""
        if not self._needs_sync(groups):
            return groups
        try:
            self._wal.sync(in_loop=in_loop)
        except StoreDataError as failure:
            return [
                Committed.failed(group.writes, failure) if group.needs_sync else group
                for group in groups
            ]
        return groups

    def _needs_sync(self, groups: Sequence[Committed]) -> bool:
        return self._sync and any(group.needs_sync for group in groups)

    def _keep_log_short(self) -> None:
        """Have a long log copied while writes go on."""
        if not self._copying and self._wal.has_frames(_LONG_LOG_PAGES):
            self._copying = True
            self._copy_log(self._log_is_copied)

    def _log_is_copied(self) -> None:
        self._copied = True

    # -- in the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        while (work := self._inbox.get()) is not None:
            work()

    def _run_patiently(self, writes: Sequence[Write[Any]]) -> None:
        groups = self._run(writes, patient=True) if writes else []
        assert groups is not None
        self._settle(groups)

    def _settle(self, groups: Sequence[Committed]) -> None:
        try:
            self._finish(self._synced(groups, in_loop=False))
            self._keep_log_short()
        finally:
            if self._copied:
                self._begin_log_anew()
            else:
                self._rest()

    def _begin_log_anew(self) -> None:
        """Copy what came while the log was copied; the next group finds all copied and starts over.

        As long as a reader needs what the log holds it grows on, and the next group tries again.
        """
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            logger.warning("The log cannot be copied: %s", translated(error, self._path))
        finally:
            self._copying = self._copied = False
            self._rest()


def _are_many(writes: Sequence[Write[Any]]) -> bool:
    # A loop that has many small writes is as busy with their requests; large ones would hold it up.
    return sum(write.records - 1 for write in writes) > FEW
