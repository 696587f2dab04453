"""Notices between the processes of one machine that have the same file open.

SQLite does not notify other processes of a commit. So a process with waiting callers registers the
port of a UDP socket on loopback in the table ``peers``. A commit that finds other processes
registered adds its notices to the table ``changes``, in the same transaction, and then sends one
byte to each of them. A woken process resumes reading ``changes`` at its last id. The byte carries
no data. If it is lost, the next one wakes the process, or the query that every waiting process
makes each second finds the change. A forged one costs one query.

A waiting process renews its registration each minute, and one that did not is forgotten. Its id
would not tell whether it is alive: containers that share a file number their processes apart.

Without a socket, waiting processes would have to query ``PRAGMA data_version`` every few
milliseconds. At 5 ms, 16 waiting processes used 29 % of a CPU, where the socket uses 6 %
(``tests/benchmark/bench_sqlite_choices.py``).
"""

from __future__ import annotations

import logging
import socket
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from pydantic_core import from_json, to_json

from agl_core.errors import AglError
from agl_store_kit import Notice

if TYPE_CHECKING:
    from agl_store_sqlite.database import Database
    from agl_store_sqlite.transaction import Transaction

__all__ = ["RemoteChanges"]

logger = logging.getLogger(__name__)

_READ_SECONDS: Final = 1.0
"""Seconds after which a waiting process reads ``changes`` without a datagram: two containers may
share a file and no loopback interface."""
_KEEP_SECONDS: Final = 60.0
"""Peers read a change within milliseconds; one that did not by then is dead."""
_RENEW_SECONDS: Final = 60.0
"""Each renewal is a write."""
_LEASE_SECONDS: Final = 180.0
"""A process that missed several renewals is dead. If it was only held up, it registers again."""


class RemoteChanges:
    """Exchanges notices with other processes. Thread-safe.

    Args:
        database: The open file.
        publish: Called with the notices of each commit.
    """

    def __init__(self, database: Database, publish: Callable[[Sequence[Notice]], None]) -> None:
        self._database = database
        self.publish = publish
        self._lock = threading.Lock()
        self._waiting = 0
        self._registered = False
        self._seen = 0
        self._pruned = self._renewed = time.monotonic()
        self._closed = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind(("127.0.0.1", 0))
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(_READ_SECONDS)
        self._port: int = self._socket.getsockname()[1]
        self._thread: threading.Thread | None = None

    # -- sending ---------------------------------------------------------------------------------

    def log(self, tx: Transaction) -> Sequence[int]:
        """Add a transaction's notices to ``changes`` for other processes; return their ports."""
        if not tx.notices:
            return ()
        peers = [
            port for (port,) in tx.execute("SELECT port FROM peers WHERE port <> ?", (self._port,))
        ]
        if peers:
            tx.connection.executemany(
                "INSERT INTO changes (peer, time, event) VALUES (?, ?, ?)",
                [(self._port, notice.time, _event(notice)) for notice in tx.notices],
            )
            if time.monotonic() - self._pruned > _KEEP_SECONDS:
                self._pruned = time.monotonic()
                _forget_dead_peers(tx)
                tx.execute("DELETE FROM changes WHERE time < ?", (tx.now - _KEEP_SECONDS,))
        return peers

    def wake(self, peers: Sequence[int]) -> None:
        """Wake the processes at these ports, so that they read ``changes``."""
        for port in peers:
            try:
                self._socket.sendto(b"!", ("127.0.0.1", port))
            except OSError as error:
                # Its buffer is full, so that process has a byte to read and will query anyway.
                logger.debug("Cannot wake the process at port %d: %s", port, error)

    # -- receiving -------------------------------------------------------------------------------

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Also publish the changes of other processes until the context is left."""
        with self._lock:
            self._waiting += 1
            registered = self._registered
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._listen, name="agl-sqlite-remote", daemon=True
                )
                self._thread.start()
        try:
            if not registered:
                await self._database.writer.write(self._register, synced=False)
                with self._lock:
                    self._registered = True
                    self._renewed = time.monotonic()
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _register(self, tx: Transaction) -> None:
        _forget_dead_peers(tx)
        added = tx.execute("INSERT OR IGNORE INTO peers VALUES (?, ?)", (self._port, tx.now))
        if added.rowcount:
            self._seen = tx.one("SELECT coalesce(max(id), 0) FROM changes")[0]

    def _renew(self, tx: Transaction) -> None:
        tx.execute("INSERT OR REPLACE INTO peers VALUES (?, ?)", (self._port, tx.now))

    def _unregister(self, tx: Transaction) -> None:
        tx.execute("DELETE FROM peers WHERE port = ?", (self._port,))

    def _listen(self) -> None:
        while not self._closed:
            try:
                self._socket.recv(1)
            except TimeoutError:
                if not self._waiting:
                    continue
            try:
                if not self._closed:
                    self._read()
            except AglError as error:
                logger.warning("Cannot read the changes of other processes: %s", error)

    def _read(self) -> None:
        """Publish the changes of other processes; unregister if no caller waits any more."""
        with self._lock:
            # Not done when the last caller leaves: a process whose callers often wait would write
            # to the file each time, also if no other process has the file open.
            if not self._waiting and self._registered:
                self._registered = False
                self._database.writer.post(self._unregister)
                return
        unseen, known = self._database.look(self._look)
        self.publish(unseen)
        with self._lock:
            due = not known or time.monotonic() - self._renewed > _RENEW_SECONDS
            if due and self._registered and not self._closed:
                self._renewed = time.monotonic()
                self._database.writer.post(self._renew)

    def _look(self, connection: sqlite3.Connection) -> tuple[list[Notice], bool]:
        """Return what others have changed, and whether this process is registered."""
        rows = connection.execute(
            "SELECT id, peer, time, event FROM changes WHERE id > ? ORDER BY id", (self._seen,)
        ).fetchall()
        if rows:
            self._seen = rows[-1][0]
        unseen = [_notice(moment, event) for _, peer, moment, event in rows if peer != self._port]
        own = connection.execute("SELECT 1 FROM peers WHERE port = ?", (self._port,)).fetchone()
        return unseen, own is not None

    def close(self) -> None:
        """Stop listening; called before the writer closes."""
        with self._lock:
            self._closed = True
            if self._registered:
                self._database.writer.post(self._unregister)
        if self._thread is not None:
            self._socket.sendto(b"!", ("127.0.0.1", self._port))
            self._thread.join()

    def close_socket(self) -> None:
        """Close the socket; called after the writer has closed."""
        self._socket.close()


def _event(notice: Notice) -> bytes:
    fields = notice._asdict()
    kind = fields.pop("kind")
    del fields["time"]  # a column of its own
    return to_json([kind, {name: value for name, value in fields.items() if value is not None}])


def _notice(moment: float, event: bytes) -> Notice:
    kind, fields, *_ = from_json(event)
    return Notice(kind, moment, **fields)


def _forget_dead_peers(tx: Transaction) -> None:
    tx.execute("DELETE FROM peers WHERE time < ?", (tx.now - _LEASE_SECONDS,))
