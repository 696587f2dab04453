"""Tells model calls that wait for a proxy that its address has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

PROXY_PATIENCE: Final = 300.0
"""Seconds that a call or an attempt waits for a proxy: a supervisor restarts it sooner."""


class ProxyMove:
    """Tells an attempt's model calls that its proxies have other addresses now. Thread-safe.

    A resumed run may start its proxy on another port. Without this, calls of attempts that were
    claimed before would wait for the old port in vain.

    Args:
        look: Called once, in the thread of the first model call that waits. Makes the owner look
            for a new address, until the owner calls :meth:`set`.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._look: Callable[[], object] | None = look
        self._lock = threading.Lock()
        self._moved = False

    def has_happened(self) -> bool:
        """Return whether the proxies have moved or the attempt has ended.

        The first call starts the look for a new address.
        """
        with self._lock:
            look, self._look = self._look, None
        if look is not None:
            look()
        return self._moved

    def set(self) -> None:
        """End the waits and the search: the proxies are elsewhere, or the attempt has ended."""
        with self._lock:
            self._moved, self._look = True, None


proxy_move: Final[ContextVar[ProxyMove | None]] = ContextVar("agl_proxy_move", default=None)
"""The move of the attempt that runs in this context; None outside of attempts."""
