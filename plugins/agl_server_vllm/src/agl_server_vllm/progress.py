"""Progress of a starting server: a spinner in a terminal, elsewhere a log line every ten seconds.

A first start may download a model and compile kernels for minutes.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

__all__ = ["show_start"]

logger = logging.getLogger(__name__)

_LINE_INTERVAL: Final = 10.0  # seconds between two plain lines
_WIDTH: Final = 70
"""Columns of vLLM's message: with what is before it, it fits into 120."""


@contextmanager
def show_start(name: str) -> Generator[Callable[[str], None]]:
    """Show that a server is starting; yield a function that takes its last log message."""
    begun = time.monotonic()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status(f"starting vLLM: {name}") as status:

            def show(message: str) -> None:
                seconds = time.monotonic() - begun
                status.update(f"starting vLLM: {name} {seconds:.0f} s  {escape(message[:_WIDTH])}")

            yield show
        return

    logged = begun

    def log(message: str) -> None:
        nonlocal logged
        now = time.monotonic()
        if now - logged >= _LINE_INTERVAL:
            logged = now
            logger.info("starting vLLM: %s, %.0f s: %s", name, now - begun, message[:_WIDTH])

    yield log
