"""What there is to see while a server starts: a spinner in a terminal, elsewhere a line at times.

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


@contextmanager
def show_start(name: str) -> Generator[Callable[[str], None]]:
    """Show that a server is starting; yield what tells the last thing it said."""
    begun = time.monotonic()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status(f"starting vLLM: {name}") as status:

            def show(said: str) -> None:
                seconds = time.monotonic() - begun
                status.update(f"starting vLLM: {name} {seconds:.0f} s  {escape(said[:_WIDTH])}")

            yield show
        return

    told = begun

    def tell(said: str) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= _LINE_INTERVAL:
            told = now
            logger.info("starting vLLM: %s, %.0f s: %s", name, now - begun, said[:_WIDTH])

    yield tell
