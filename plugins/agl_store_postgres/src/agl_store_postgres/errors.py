"""Translation of psycopg's errors into the store's; messages name the server."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors

from agl_core.errors import (
    AglError,
    InvalidArgumentError,
    PermissionDeniedError,
    StoreDataError,
    StoreFullError,
    StoreUnavailableError,
)

__all__ = ["UNTRANSLATED", "is_conflict", "is_refusal", "is_unavailable", "translated"]

UNTRANSLATED: Final = (psycopg.Error, UnicodeEncodeError)
"""The errors that :func:`translated` takes."""

_UNFIT = (psycopg.DataError, errors.ProgramLimitExceeded, UnicodeEncodeError)
_UNAVAILABLE = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.ReadOnlySqlTransaction,  # a standby, or the old primary after a failover
)
# A failed connection has no SQLSTATE, only the server's text.
_REFUSED = ("authentication failed", "no pg_hba.conf entry", "permission denied", "no password")
_MISSING = ("database", "does not exist")
_FULL = "the disk is full; free some space, then the store continues without a restart"


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction lost against another one and may be repeated."""
    return isinstance(
        error, errors.SerializationFailure | errors.DeadlockDetected | errors.LockNotAvailable
    )


def is_unavailable(error: BaseException) -> bool:
    """Whether the server says that it cannot serve now, over a connection that works."""
    return isinstance(error, _UNAVAILABLE)


def is_refusal(error: psycopg.Error) -> bool:
    """Whether a connection failed for a reason that trying again does not change."""
    reason = str(error)
    return any(word in reason for word in _REFUSED) or all(word in reason for word in _MISSING)


def translated(error: BaseException, address: str) -> AglError:
    """Return the store error for an error of psycopg.

    Args:
        error: One of :data:`UNTRANSLATED`.
        address: The server's address, without credentials.
    """
    reason = " ".join(str(error).split())
    if isinstance(error, _UNFIT):
        return InvalidArgumentError(f"PostgreSQL cannot store this value: {reason}")
    if isinstance(error, errors.InsufficientPrivilege) or any(w in reason for w in _REFUSED):
        return PermissionDeniedError(f"PostgreSQL at {address} refuses this user ({reason})")
    if isinstance(error, errors.DiskFull):
        return StoreFullError(f"PostgreSQL at {address}: {_FULL} ({reason})")
    if all(word in reason for word in _MISSING):
        return StoreDataError(f"PostgreSQL at {address}: {reason}; create it with createdb")
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return StoreUnavailableError(f"PostgreSQL at {address} takes no writes now ({reason})")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailableError(
            f"PostgreSQL at {address} cannot be reached; is it running? ({reason})"
        )
    return StoreDataError(f"PostgreSQL at {address}: {reason}")
