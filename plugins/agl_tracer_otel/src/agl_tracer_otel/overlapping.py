"""A context that several overlapping ``with`` blocks share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any


class Overlapping:
    """Enters a context in the first of overlapping ``with`` blocks, and exits it after the last.

    Calling it returns the context manager of one block. Thread-safe.

    Args:
        make: Makes the context.

    Attributes:
        lock: Held while the context is entered or exited; reentrant.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self.lock = threading.RLock()
        self._make = make
        self._blocks = 0
        self._entered = ExitStack()

    @property
    def active(self) -> bool:
        """Whether a block runs."""
        return self._blocks > 0

    @contextmanager
    def __call__(self) -> Generator[None]:
        try:
            with self.lock:
                self._blocks += 1
                if self._blocks == 1:
                    self._entered.enter_context(self._make())
            yield
        finally:
            with self.lock:
                self._blocks -= 1
                if self._blocks == 0:
                    self._entered.close()
