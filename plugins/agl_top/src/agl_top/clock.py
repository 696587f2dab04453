"""The clock of a store. Its machine's clock may differ from this one's."""

from __future__ import annotations

import time

from agl_core.store import LightningStore


class StoreClock:
    """Asks a store for its time once, and goes on by itself."""

    def __init__(self) -> None:
        self._ahead: float | None = None

    async def now(self, store: LightningStore) -> float:
        """Return the store's time, in epoch seconds."""
        if self._ahead is None:
            self._ahead = await store.now() - time.time()
        return time.time() + self._ahead
