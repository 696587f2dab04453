"""Idempotency keys: they identify repetitions of a creating call.

A creating call whose reply was lost is sent again under the same key. The store server remembers
replies while it runs. The engine derives the ids of the created records from the key, so a store
that outlives the server, or that several servers share, does not create them twice.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from typing import Final

current_request_key: Final[ContextVar[str | None]] = ContextVar(
    "agl_current_request_key", default=None
)
"""Key of the creating call in this context; None if it has no key."""


def id_from_key(prefix: str, key: str, place: int = 0, *, length: int = 12) -> str:
    """Return the id of a record that a call with this key creates, the same at each repetition.

    Args:
        prefix: Start of the id, with its dash.
        key: The idempotency key.
        place: Index of the record among those that the call creates.
        length: Number of hex digits.
    """
    return prefix + hashlib.sha256(f"{prefix}{key}/{place}".encode()).hexdigest()[:length]
