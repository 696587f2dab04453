"""The watchdog: ends attempts that take too long or are silent."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from agl_core.plugins import has_listeners
from agl_store_kit import lifecycle
from agl_store_kit.backend import RolloutState, StorageBackend
from agl_store_kit.clock import Clock
from agl_store_kit.lifecycle import Change

logger = logging.getLogger(__name__)

_SHORTEST_PERIOD: Final = 0.05
"""Seconds between two scans while a call waits, without a debounce."""


class Watchdog:
    """Scans a backend's rollouts at most once per debounce. Thread-safe.

    Args:
        backend: The backend.
        debounce: Shortest time between two scans, in seconds.
    """

    def __init__(self, backend: StorageBackend, debounce: float) -> None:
        self._backend = backend
        self._debounce = debounce
        self._last_scan: float | None = None
        self._clock = Clock(time.time() if backend.clock is None else None)
        self._lock = threading.Lock()
        self.period = max(debounce, _SHORTEST_PERIOD)
        """Longest sleep of a waiting call until the next scan is due, in seconds."""

    def renewed(self) -> Watchdog:
        """Return a watchdog for a forked child, with an unlocked lock."""
        twin = Watchdog(self._backend, self._debounce)
        twin._last_scan, twin._clock = self._last_scan, self._clock
        return twin

    def is_due(self) -> bool:
        last = self._last_scan
        return (
            last is None or time.monotonic() - last >= self._debounce
        ) and self._backend.has_watched()

    async def scan(self) -> int:
        """Scan, unless the last scan is too recent; return the number of ended attempts."""
        if not self.is_due():
            return 0  # most calls end here, without the lock
        with self._lock:
            if not self.is_due():
                return 0
            self._last_scan = time.monotonic()
        shared = self._backend.clock
        wall = time.time() if shared is None else await shared.now()
        with self._lock:
            now = self._clock.look(wall)
        if not await self._backend.begin_scan(now, self._debounce):
            return 0
        ended = 0
        for rollout, attempt in await self._backend.find_watched():
            if attempt is None:
                logger.warning("Rollout %s runs without an attempt", rollout.rollout_id)
            elif lifecycle.verdict(rollout, self._clock.moved(attempt), now=now) is not None:
                ended += await self._end(rollout.rollout_id, now)
        return ended

    async def _end(self, rollout_id: str, now: float) -> int:
        ended = 0

        def decide(state: RolloutState) -> Change | None:
            nonlocal ended
            ended = 0
            rollout, _, attempt, worker = state
            if attempt is None:
                return None
            status = lifecycle.verdict(rollout, self._clock.moved(attempt), now=now)
            if status is None:
                return None  # since the scan it has sent a span or ended
            ended = 1
            changes = {"status": status}
            return lifecycle.update_attempt(
                rollout, attempt, changes, is_latest=True, worker=worker, now=now
            )

        payload = has_listeners("rollout_ended")  # only they read it
        await self._backend.change(rollout_id, decide, payload=payload)
        return ended
