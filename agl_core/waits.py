"""Says in the log what calls wait for, if that takes long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

__all__ = ["REMIND_SECONDS", "SILENT_SECONDS", "Waits"]

SILENT_SECONDS: Final = 3.0
"""Whoever waits longer without a word thinks that the program hangs."""
REMIND_SECONDS: Final = 60.0
"""Between two lines about one wait, and about waits for the same thing."""


class Waits:
    """Waits for one thing, of any number of calls: the log has a line for all of them.

    Args:
        tell: Logs a line, such as the method of a logger.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._tell_at = float("-inf")

    @contextmanager
    def on(self, what: Callable[[], str]) -> Generator[None]:
        """Say what is waited for if the context is open for long. Needs a running event loop.

        Args:
            what: Returns what the line says after "Waiting for".
        """
        loop = asyncio.get_running_loop()

        def tell() -> None:
            nonlocal timer
            now = time.monotonic()
            if now >= self._tell_at:
                self._tell_at = now + REMIND_SECONDS
                self._tell(f"Waiting for {what()}")
            timer = loop.call_later(REMIND_SECONDS, tell)

        timer = loop.call_later(SILENT_SECONDS, tell)
        try:
            yield
        finally:
            timer.cancel()
