"""Fails the attempts of a worker that is gone, in a store of this process or behind a server."""

from __future__ import annotations

from pydantic_core import to_json

from agl_core.store import LightningStore
from agl_core.types import RUNNING_STATUSES, AttemptedRollout

__all__ = ["release_worker"]


async def release_worker(store: LightningStore, worker_id: str, reason: str) -> None:
    """Fail the attempts that a worker was running, which is gone.

    Attempts of other workers and ended attempts do not change. A server does it in one request,
    which tokens of scope ``runner`` allow although they may not list rollouts.

    Args:
        store: The store.
        worker_id: The worker.
        reason: The cause, for the attempts' metadata (key ``error``).
    """
    from agl_store_http.client import LightningStoreClient
    from agl_store_http.client.codecs import path_of

    if isinstance(store, LightningStoreClient):
        path = path_of("workers", worker_id, "release")
        await store.call("POST", path, to_json({"reason": reason}))
        return
    for rollout in await store.query_rollouts(status_in=sorted(RUNNING_STATUSES)):
        attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        if attempt is not None and attempt.worker_id == worker_id:
            metadata = {**(attempt.metadata or {}), "error": reason}
            await store.update_attempt(
                rollout.rollout_id, attempt.attempt_id, status="failed", metadata=metadata
            )
