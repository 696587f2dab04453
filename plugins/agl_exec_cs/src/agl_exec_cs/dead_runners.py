"""Fails the attempt of a dead runner in the run's store."""

from __future__ import annotations

import asyncio
import logging

from agl_core.store import LightningStore
from agl_exec_cs.store_access import StoreAccess
from agl_store_http import LightningStoreClient

__all__ = ["fail_attempt_of"]

logger = logging.getLogger(__name__)

_TIMEOUT = 5.0  # seconds; the store may be gone too


def fail_attempt_of(access: StoreAccess, worker_id: str, reason: str) -> None:
    """Fail the attempt that a dead worker was running.

    Blocks for a few seconds at most; errors are logged. Must not be called in a thread with a
    running event loop.

    Args:
        access: How the worker reached the store.
        worker_id: The worker.
        reason: The cause, for the attempt's metadata (key ``error``).
    """

    async def fail() -> None:
        store: LightningStore = access.shared.value or LightningStoreClient(str(access.url))
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
            if access.shared.value is None:
                await store.close()

    try:
        asyncio.run(asyncio.wait_for(fail(), _TIMEOUT))
    except Exception:
        logger.exception("The attempt of %s may be left open", worker_id)
