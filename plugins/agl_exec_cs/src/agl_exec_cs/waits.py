"""Waits that Ctrl+C ends whenever it comes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

__all__ = ["wait_in_steps"]

_LONGEST_WAIT: Final = 1.0  # seconds


def wait_in_steps(wait: Callable[[float], bool], timeout: float | None) -> bool:
    """Wait in the main thread in short steps.

    Python handles a Ctrl+C that comes just before a wait only after it, and a wait for a pipe takes
    no timeout of more than 24.8 days.

    Args:
        wait: Waits for at most so many seconds; returns whether the end has come.
        timeout: Seconds in all; None waits without limit.

    Returns:
        Whether the end has come.
    """
    remaining = math.inf if timeout is None else timeout
    ends = time.monotonic() + remaining
    while not wait(min(remaining, _LONGEST_WAIT)):
        remaining = ends - time.monotonic()
        if remaining <= 0:
            return False
    return True
