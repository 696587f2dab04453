"""Translation of SQLite's errors: the store's errors name the file and say what to do."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from agl_core.errors import AglError, StoreDataError, StoreFullError, StoreUnavailableError
from agl_store_kit.rows import UnreadableRecordError

__all__ = ["FILE_ERRORS", "is_busy", "naming", "translated"]

FILE_ERRORS: Final = (sqlite3.Error, UnreadableRecordError)
"""The errors that a file can raise: SQLite's, and damage that SQLite does not notice."""

_DAMAGED = "the file is damaged; restore it, or export what can be read"
_ADVICE = {
    "SQLITE_READONLY": "the file or its folder is read-only",
    "SQLITE_CANTOPEN": "the file cannot be opened; does its folder exist and may you write there?",
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_NOTADB": "the file is not an SQLite database",
    "SQLITE_IOERR": "the disk reports an error",
}
_FULL = "the disk is full; free some space, then the store continues without a restart"
_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")


def translated(error: sqlite3.Error | UnreadableRecordError, path: str) -> AglError:
    """Return the store's error for an error of this file."""
    if isinstance(error, UnreadableRecordError):
        return StoreDataError(f"{path}: {_DAMAGED} ({error})")
    code = _code(error)
    if is_busy(error):
        return StoreUnavailableError(f"{path} is locked by another process ({error})")
    if code == "SQLITE_FULL":
        return StoreFullError(f"{path}: {_FULL} ({error})")
    if code.startswith("SQLITE_CANTOPEN") and _is_read_only(path):
        code = "SQLITE_READONLY"  # where it would have to make the log beside the file
    for prefix, advice in _ADVICE.items():
        if code.startswith(prefix):
            return StoreDataError(f"{path}: {advice} ({error})")
    return StoreDataError(f"{path}: {error}")


def is_busy(error: BaseException) -> bool:
    """Return whether another connection holds the lock."""
    return _code(error).startswith(_BUSY)


def _code(error: BaseException) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


def _is_read_only(path: str) -> bool:
    file = Path(path)
    return file.exists() and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK))


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Translate errors of the file that are raised inside."""
    try:
        yield
    except FILE_ERRORS as error:
        raise translated(error, path) from error
