"""Ids that follow from an idempotency key.

A creating call whose reply was lost comes again under the same key. What it creates gets the same
ids each time, so the unique indexes keep it from being created twice: no record of keys is needed,
and none can be lost between the two.
"""

from __future__ import annotations

import hashlib

__all__ = ["id_from"]


def id_from(prefix: str, key: str, place: int = 0, *, length: int = 12) -> str:
    """Return the id of what a call with this idempotency key creates: the same at each retry."""
    return prefix + hashlib.sha256(f"{prefix}{key}/{place}".encode()).hexdigest()[:length]
