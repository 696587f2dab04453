"""Fails the attempts of a dead runner in the run's store."""

from __future__ import annotations

import asyncio
import logging

from agl_core.store import LightningStore
from agl_exec_cs.store_access import StoreAccess
from agl_store_http import LightningStoreClient, release_worker

__all__ = ["fail_attempts_of"]

logger = logging.getLogger(__name__)

_TIMEOUT = 5.0  # seconds; the store may be gone too


def fail_attempts_of(access: StoreAccess, worker_id: str, reason: str) -> None:
    """Fail the attempts that a dead worker was running.

    Blocks for a few seconds at most; errors are logged. Must not be called in a thread with a
    running event loop.

    Args:
        access: How the worker reached the store.
        worker_id: The worker.
        reason: The cause, for the attempts' metadata (key ``error``).
    """

    async def fail() -> None:
        store: LightningStore = access.shared.value or LightningStoreClient(str(access.url))
        try:
            await release_worker(store, worker_id, reason)
        finally:
            if access.shared.value is None:
                await store.close()

    try:
        asyncio.run(asyncio.wait_for(fail(), _TIMEOUT))
    except Exception:
        logger.exception("Attempts of %s may be left open", worker_id)
