"""A clock that somebody sets while attempts run."""

from __future__ import annotations

import time
from typing import Final

from agl_core.types import Attempt
from agl_core.types._copying import evolve

_NOTICED: Final = 5.0
"""Seconds; clocks are steered by less than that between two looks."""
_REMEMBERED: Final = 32
"""Jumps; attempts that run across more of them are rare."""


def _steady() -> float:
    # Nobody else here asks for nanoseconds, so a test's clock can replace this one beside
    # time.time and leave event loops alone.
    return time.monotonic_ns() / 1e9


class Clock:
    """Compares the time of day with a clock that nobody sets. Not thread-safe."""

    def __init__(self) -> None:
        self._wall, self._steady = time.time(), _steady()
        self._jumps: list[tuple[float, float]] = []
        """Of each: when it came by the clock of before, and its length."""

    def look(self) -> float:
        """Return the time of day, after noting whether it was set since the last look."""
        wall, steady = time.time(), _steady()
        expected = self._wall + (steady - self._steady)
        jump = wall - expected
        if abs(jump) > _NOTICED:
            self._jumps = [*self._jumps, (expected, jump)][-_REMEMBERED:]
        self._wall, self._steady = wall, steady
        return wall

    def moved(self, attempt: Attempt) -> Attempt:
        """Return an attempt with its times as the clock of now would have written them."""
        if not self._jumps:
            return attempt
        seen = attempt.last_heartbeat_time
        times = {"start_time": self._moved(attempt.start_time)}
        if seen is not None:
            times["last_heartbeat_time"] = self._moved(seen)
        return evolve(attempt, times)

    def _moved(self, at: float) -> float:
        for came, length in self._jumps:
            # After a jump forward no new time is before it. After a jump back a time may be from
            # before or after it; those in the future are from before.
            if at <= came if length > 0 else at > self._wall:
                at += length
        return at
