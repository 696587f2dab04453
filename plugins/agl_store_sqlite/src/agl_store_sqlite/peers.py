"""Processes on one machine that have the same file open wake each other.

SQLite tells nobody about a commit, and polling for one costs either time or patience. So each
process binds a UDP socket on loopback and notes its port in ``peers``. A writer that finds others
there also writes what it changed to ``changes``, in the same transaction, and after the commit
sends each of them one byte. Who is woken reads ``changes`` from where it left off. The byte carries
nothing: a lost one is made up for by the next (or by the look every second), a forged one costs one
query.
"""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import psutil
from pydantic_core import from_json, to_json

from agl_core.errors import AglError
from agl_store_sqlite.errors import translated
from agl_store_sqlite.tables import Tables
from agl_store_sqlite.transaction import Told, Transaction

__all__ = ["Peers"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_KEEP_SECONDS: Final = 60.0


class Peers:
    """This process among those that share the file.

    Args:
        connection: Used once, to register, before the writer takes it.
        path: The file's name, for errors.
        heard: Called in the listening thread after another process may have committed.
    """

    def __init__(
        self, connection: sqlite3.Connection, path: str, heard: Callable[[], None]
    ) -> None:
        self._path = path
        self._heard = heard
        self._stopping = threading.Event()
        self._pruned = time.monotonic()
        self.alone = True
        """Whether no other process had the file open when last looked."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind(("127.0.0.1", 0))
            self._socket.settimeout(_LOOK_SECONDS)
            self.port: int = self._socket.getsockname()[1]
            self._seen = self._sign_on(connection)
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._listen, name="agl-sqlite-peers", daemon=True)

    def _sign_on(self, connection: sqlite3.Connection) -> int:
        """Register; return the number of the last change, which this process need not hear of."""
        connection.execute("BEGIN IMMEDIATE")
        self._drop_dead(connection)
        connection.execute(
            "INSERT OR REPLACE INTO peers VALUES (?, ?, ?)",
            (self.port, os.getpid(), psutil.Process().create_time()),
        )
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM changes").fetchone()
        connection.execute("COMMIT")
        return last

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self, connection: sqlite3.Connection) -> None:
        """Sign off and stop listening; called by the writer as its last write."""
        self._stopping.set()
        try:
            connection.execute("DELETE FROM peers WHERE port = ?", (self.port,))
        except sqlite3.Error as error:
            # The entry is dropped by the next process that opens the file.
            logger.warning("%s", translated(error, self._path))
        self._socket.sendto(b"!", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()

    # -- telling ---------------------------------------------------------------------------------

    def log(self, tx: Transaction) -> list[int]:
        """Write what the transaction changed for the others to read; return their ports."""
        if not tx.told:
            return []
        ports = [port for (port,) in tx.execute("SELECT port FROM peers") if port != self.port]
        self.alone = not ports
        if not ports:
            return []
        tx.connection.executemany(
            "INSERT INTO changes (peer, time, event) VALUES (?, ?, ?)",
            [(self.port, tx.now, to_json(told)) for told in tx.told],
        )
        if time.monotonic() - self._pruned > _KEEP_SECONDS:
            self._pruned = time.monotonic()
            self._drop_dead(tx.connection)
            tx.execute("DELETE FROM changes WHERE time < ?", (tx.now - _KEEP_SECONDS,))
            tx.forget_requests(tx.now - _KEEP_SECONDS * 60)
        return ports

    def wake(self, ports: Iterable[int]) -> None:
        """Wake the others, after the commit."""
        for port in ports:
            try:
                self._socket.sendto(b"!", ("127.0.0.1", port))
            except OSError as error:  # a full buffer: its owner is about to look anyway
                logger.debug("Could not wake the process at port %d: %s", port, error)

    @staticmethod
    def _drop_dead(connection: sqlite3.Connection) -> None:
        for port, pid, started in connection.execute("SELECT port, pid, started FROM peers"):
            if not _is_alive(pid, started):
                connection.execute("DELETE FROM peers WHERE port = ?", (port,))

    # -- hearing ---------------------------------------------------------------------------------

    def unread(self, tables: Tables) -> Iterator[tuple[Told, float]]:
        """Yield what others changed since the last call, with the time of each change."""
        rows = tables.execute(
            "SELECT id, peer, time, event FROM changes WHERE id > ? ORDER BY id", (self._seen,)
        ).fetchall()
        for number, peer, moment, event in rows:
            self._seen = number
            if peer != self.port:
                yield Told(*from_json(event)), moment

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                self._socket.recv(1)
            except TimeoutError:
                logger.debug("No news of %s for %g s; looking anyway", self._path, _LOOK_SECONDS)
            if self._stopping.is_set():
                return
            try:
                self._heard()
            except AglError as error:
                logger.warning("Could not read what another process changed: %s", error)


def _is_alive(pid: int, started: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - started) < 1.0
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
