"""Ending the attempt of a runner that died, at a store elsewhere."""

from __future__ import annotations

import asyncio
import logging

from agl_core.store import LightningStore
from agl_exec_cs.routes import Route
from agl_store_http import LightningStoreClient

__all__ = ["fail_attempt_of"]

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT = 5.0  # seconds to write the last status to a store that may be gone


def fail_attempt_of(route: Route, worker_id: str, reason: str) -> None:
    """Fail what a worker is running that died, at a store elsewhere.

    Blocks for seconds at most; errors are logged. Not for a thread with a running loop.

    Args:
        route: The way to the store.
        worker_id: The worker.
        reason: Why, for the attempt's metadata (key ``error``).
    """

    async def fail() -> None:
        store: LightningStore = route.store.content or LightningStoreClient(str(route.url))
        try:
            worker = await store.get_worker_by_id(worker_id)
            if worker and worker.current_rollout_id and worker.current_attempt_id:
                await store.update_attempt(
                    worker.current_rollout_id,
                    worker.current_attempt_id,
                    status="failed",
                    metadata={"error": reason},
                )
        finally:
            if route.store.content is None:
                await store.close()

    try:
        asyncio.run(asyncio.wait_for(fail(), _CLOSE_TIMEOUT))
    except Exception:
        logger.exception("The attempt of %s may be left open", worker_id)
