"""What model calls that wait for a proxy know about its address."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

PROXY_PATIENCE: Final = 300.0
"""Seconds that a call or an attempt waits for a proxy: supervisors restart programs sooner."""


class ProxyMove:
    """Tells an attempt's model calls that its proxies have other addresses now. Thread-safe.

    A resumed run may start its proxy on another port. The calls of attempts that were claimed
    before would wait for the old one in vain.

    Args:
        look: Called once, by the first call that waits, from its thread. Makes the owner look for
            a new address until it calls :meth:`set`.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._look: Callable[[], object] | None = look
        self._lock = threading.Lock()
        self._moved = False

    def has_happened(self) -> bool:
        """Return whether no proxy of the attempt is expected back at its old address."""
        with self._lock:
            look, self._look = self._look, None
        if look is not None:
            look()
        return self._moved

    def set(self) -> None:
        """End the waits, and look no more: the proxies are elsewhere, or the attempt has ended."""
        with self._lock:
            self._moved, self._look = True, None


proxy_move: Final[ContextVar[ProxyMove | None]] = ContextVar("agl_proxy_move", default=None)
"""The move of the attempt that runs in this context; None outside of attempts."""
