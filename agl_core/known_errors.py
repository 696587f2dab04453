"""Counts errors by type and place: a log shows one traceback of each kind."""

from __future__ import annotations

import hashlib
import threading
import traceback
from collections.abc import MutableSequence
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol

__all__ = ["ERROR_TABLE", "KnownErrors"]

ERROR_TABLE: Final = 2 * 512
"""Numbers in a table of errors: two per kind."""
_LOCK_SECONDS: Final = 1.0  # a process that was killed keeps a shared lock for ever


class Lock(Protocol):
    """A lock of :mod:`threading` or :mod:`multiprocessing`."""

    def acquire(self, *, timeout: float) -> bool: ...
    def release(self) -> None: ...


class KnownErrors:
    """The errors seen so far, of one process or of several; thread-safe. A pickled copy is empty.

    Args:
        table: :data:`ERROR_TABLE` unsigned 64-bit numbers, at first 0: hash and count of each kind.
            Once it is full, it is cleared.
        lock: Guards the table.
    """

    shared: ClassVar[KnownErrors | None] = None
    """Those of the runner processes of this machine, if there are several."""

    def __init__(self, table: MutableSequence[int] | None = None, lock: Lock | None = None) -> None:
        self._table = [0] * ERROR_TABLE if table is None else table
        self._lock: Any = lock or threading.Lock()

    def __reduce__(self) -> tuple[type[KnownErrors], tuple[()]]:
        return KnownErrors, ()

    def count(self, error: BaseException, begin: TracebackType | None = None) -> int:
        """Count an error; return how many of its type and traceback were counted, with it.

        Args:
            error: The error.
            begin: The part of its traceback that tells it from others; None: all of it.
        """
        frames = traceback.walk_tb(begin or error.__traceback__)
        places = [(frame.f_code.co_filename, line) for frame, line in frames]
        kind = f"{type(error).__module__}.{type(error).__qualname__} {places}"
        # Not hash(): it differs between processes.
        digest = hashlib.blake2b(kind.encode(errors="replace"), digest_size=8).digest()
        held = self._lock.acquire(timeout=_LOCK_SECONDS)
        try:
            return self._add(int.from_bytes(digest) or 1)
        finally:
            if held:
                self._lock.release()

    def _add(self, kind: int) -> int:
        table = self._table
        for index in range(0, len(table), 2):
            if table[index] in (0, kind):
                break
        else:
            table[:] = [0] * len(table)
            index = 0
        table[index] = kind
        table[index + 1] += 1
        return table[index + 1]
