"""Ids of workers that are started elsewhere: unique in a store, without asking it."""

from __future__ import annotations

import hashlib
import os

__all__ = ["first_worker"]


def first_worker(seed: str | None = None) -> int:
    """Return the number of the first worker of a machine; the next 255 are its own, too.

    Args:
        seed: Text that the number is made from; None draws one.
    """
    drawn = os.urandom(6) if seed is None else hashlib.sha256(seed.encode()).digest()[:6]
    return int.from_bytes(drawn) & ~0xFF
