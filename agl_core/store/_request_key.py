"""Idempotency keys: they identify repetitions of a creating call.

A creating call whose reply was lost is sent again under the same key. The store server remembers
replies while it runs. The engine derives the ids of the created records from the key, so a store
that outlives the server, or that several servers share, does not create them twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
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


@contextmanager
def without_key() -> Generator[None]:
    """Leave the creating call: what else happens meanwhile is no part of it.

    Listeners to events get a copy of the context, and may create records of their own.
    """
    reset = current_request_key.set(None)
    try:
        yield
    finally:
        current_request_key.reset(reset)


@contextmanager
def key_of_place(place: int) -> Generator[None]:
    """Give one record of a creating call a key of its own, the same at each repetition.

    Calls under one key create one record: without this a batch of single calls would be one.

    Args:
        place: Index of the record among those that the call creates.
    """
    key = current_request_key.get()
    reset = current_request_key.set(f"{key}/{place}" if key is not None and place else key)
    try:
        yield
    finally:
        current_request_key.reset(reset)
