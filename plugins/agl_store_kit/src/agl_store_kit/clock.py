"""Clocks: one that somebody sets while attempts run, and one that several machines share."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

from agl_core.types import Attempt, evolve

_NOTICED: Final = 5.0
"""Seconds; clocks are steered by less than that between two looks."""
_REMEMBERED: Final = 32
"""Jumps; attempts that run across more of them are rare."""


_AGREED: Final = 1.0
"""Seconds; clocks that differ by less are one. A round trip takes a part of it."""
_MEASURED_AGAIN: Final = 60.0
"""Seconds between two looks at the other clock; clocks drift apart by 5 s in a day."""


def _steady() -> float:
    # Nobody else here asks for nanoseconds, so a test's clock can replace this one beside
    # time.time and leave event loops alone.
    return time.monotonic_ns() / 1e9


class Clock:
    """Compares the time of day with a clock that nobody sets. Not thread-safe.

    Args:
        wall: The time of day; None if it is not known until the first look.
    """

    def __init__(self, wall: float | None) -> None:
        self._wall = math.nan if wall is None else wall  # no distance from it is a jump
        self._steady = _steady()
        self._jumps: list[tuple[float, float]] = []
        """Of each: when it came by the clock of before, and its length."""

    def look(self, wall: float) -> float:
        """Return a time of day, after noting whether it was set since the last look."""
        steady = _steady()
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


class SharedClock:
    """The clock of a database, which decides for all processes that share its data. Thread-safe.

    Between two looks at it this machine's clock counts on. One that somebody sets is noticed.

    Args:
        read: Returns the database's time in epoch seconds, in one round trip.
    """

    def __init__(self, read: Callable[[], Awaitable[float]]) -> None:
        self._read = read
        self._offset = 0.0
        self._measured: float | None = None
        self._gap = 0.0

    async def now(self) -> float:
        """Return the time, in epoch seconds.

        Raises:
            StoreUnavailableError: The database does not answer.
        """
        if self._is_due():
            await self._measure()
        return time.time() + self._offset

    def _is_due(self) -> bool:
        known = self._measured
        return (
            known is None
            or time.monotonic() - known > _MEASURED_AGAIN
            or abs(time.time() - _steady() - self._gap) > _AGREED
        )

    async def _measure(self) -> None:
        began = time.monotonic()
        there = await self._read()
        took = time.monotonic() - began
        here = time.time()
        offset = there - (here - took / 2)
        if self._measured is None or took < _AGREED:  # a slow answer says less than the last one
            self._offset = offset if abs(offset) > _AGREED else 0.0
        self._measured, self._gap = time.monotonic(), here - _steady()
