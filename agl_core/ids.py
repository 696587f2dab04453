"""Generates the ids of all records.

| record             | format               |
|--------------------|----------------------|
| rollout            | ``ro-`` + 12 hex     |
| attempt            | ``at-`` + 8 hex      |
| resources snapshot | ``rs-`` + 12 hex     |
| trace              | 32 hex (128 bit)     |
| span               | 16 hex (64 bit)      |

Ids come from :func:`os.urandom`, so they are unique across threads, processes and forks
without shared state.
"""

from __future__ import annotations

import os

__all__ = [
    "generate_id",
    "new_attempt_id",
    "new_resources_id",
    "new_rollout_id",
    "new_span_id",
    "new_trace_id",
]


def generate_id(length: int) -> str:
    """Return ``length`` random lower-case hex digits.

    Args:
        length: Number of hex digits, at least 1.

    Raises:
        ValueError: ``length`` is less than 1.
    """
    if length < 1:
        raise ValueError(f"an id needs at least 1 digit, not {length}")
    return os.urandom((length + 1) // 2).hex()[:length]


def new_rollout_id() -> str:
    """Return the id of a new rollout."""
    return "ro-" + os.urandom(6).hex()


def new_attempt_id() -> str:
    """Return the id of a new attempt."""
    return "at-" + os.urandom(4).hex()


def new_resources_id() -> str:
    """Return the id of a new snapshot of resources."""
    return "rs-" + os.urandom(6).hex()


def new_trace_id() -> str:
    """Return the id of a new trace."""
    return os.urandom(16).hex()


def new_span_id() -> str:
    """Return the id of a new span."""
    return os.urandom(8).hex()
