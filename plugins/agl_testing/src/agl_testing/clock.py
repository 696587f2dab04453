"""A clock that tests control."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["Clock", "agl_clock"]


class Clock:
    """Replaces :func:`time.time`; it moves only by :meth:`advance`.

    :func:`time.monotonic_ns` moves along: time passes, and nobody sets a clock.

    Attributes:
        now: Epoch seconds that every caller of ``time.time`` sees.
    """

    def __init__(self, now: float) -> None:
        self.now = now

    def advance(self, seconds: float) -> None:
        """Move the clock forward, or back by a negative number of seconds."""
        self.now += seconds

    @contextmanager
    def installed(self) -> Iterator[Clock]:
        """Replace ``time.time`` in this process while the context is open."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: self.now)
            patch.setattr(time, "monotonic_ns", lambda: int(self.now * 1e9))
            yield self


@pytest.fixture
def agl_clock() -> Iterator[Clock]:
    """A clock that is stopped at the start of the test."""
    with Clock(time.time()).installed() as clock:
        yield clock
