"""Translation of pymongo's errors into the store's; messages name the server."""

from __future__ import annotations

from bson.errors import InvalidDocument
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    OperationFailure,
    PyMongoError,
)

from agl_core.errors import (
    AglError,
    InvalidArgumentError,
    PermissionDeniedError,
    StoreDataError,
    StoreUnavailableError,
)

__all__ = ["UNTRANSLATED", "translated"]

UNTRANSLATED = (PyMongoError, InvalidDocument, OverflowError, UnicodeEncodeError)
"""The errors that :func:`translated` takes."""

_UNFIT = (InvalidDocument, OverflowError, UnicodeEncodeError, DocumentTooLarge)
_UNAUTHORIZED = (13, 18, 8000)
_TOO_LARGE = (10334, 17419, 17420)


def translated(error: BaseException, host: str) -> AglError:
    """Return the store error for an error of pymongo.

    Args:
        error: One of :data:`UNTRANSLATED`.
        host: The servers' addresses, without credentials.
    """
    reason = str(error).split(", Timeout:")[0].split(", full error:")[0]
    code = error.code if isinstance(error, OperationFailure) else None
    if isinstance(error, _UNFIT) or code in _TOO_LARGE:
        return InvalidArgumentError(f"MongoDB cannot store this value: {reason}")
    if isinstance(error, ConnectionFailure):
        return StoreUnavailableError(
            f"MongoDB at {host} cannot be reached; is it running? ({reason})"
        )
    if code in _UNAUTHORIZED:
        return PermissionDeniedError(f"MongoDB at {host} refuses these credentials ({reason})")
    if isinstance(error, ConfigurationError):
        return StoreDataError(f"MongoDB at {host}: the connection string is wrong ({reason})")
    return StoreDataError(f"MongoDB at {host}: {reason}")
