"""Fails the attempts of a dead runner in the run's store."""

from __future__ import annotations

import asyncio
import logging

from agl_core.store import LightningStore
from agl_exec_cs.store_access import StoreAccess
from agl_store_http import LightningStoreClient, release_worker

__all__ = ["DeadRunners"]

logger = logging.getLogger(__name__)

_TIMEOUT = 5.0  # seconds; the store may be gone too


class DeadRunners:
    """Fails the attempts of dead runners, in a store that does not track who has claimed what.

    Args:
        access: How the workers reached the store.
    """

    def __init__(self, access: StoreAccess) -> None:
        self._access = access
        self._released: dict[str, float] = {}
        """When each worker became idle because it was released, by the clock of the store."""

    def release(self, worker_id: str, reason: str) -> bool:
        """Fail the attempts that a dead worker was running.

        Blocks for a few seconds at most; errors are logged. Must not be called in a thread with a
        running event loop.

        Args:
            worker_id: The worker.
            reason: The cause, for the attempts' metadata (key ``error``).

        Returns:
            Whether the worker is known to have finished an attempt since it was released last.
        """
        try:
            return asyncio.run(asyncio.wait_for(self._release(worker_id, reason), _TIMEOUT))
        except Exception:
            logger.exception("Attempts of %s may be left open", worker_id)
            return False

    async def _release(self, worker_id: str, reason: str) -> bool:
        shared: LightningStore | None = self._access.shared.value
        store = shared or LightningStoreClient(str(self._access.url), auth_token=self._access.token)
        try:
            found = await store.get_worker_by_id(worker_id)
            await release_worker(store, worker_id, reason)
            freed = await store.get_worker_by_id(worker_id)
        finally:
            if shared is None:
                await store.close()
        if found is None:
            return False
        # An idle worker stays so until it claims work. One that was not released before may have
        # been idle before its first claim, so only what came after a claim counts.
        idle, since = found.last_idle_time, self._released.get(worker_id, found.last_busy_time)
        if freed is not None and freed.last_idle_time is not None:
            self._released[worker_id] = freed.last_idle_time
        return idle is not None and since is not None and idle > since
