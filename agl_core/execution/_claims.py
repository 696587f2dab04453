"""Tracks the attempts that a run has claimed and not finished, so that none stays open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from agl_core.store import LightningStore, LightningStoreThreaded
from agl_core.types import RUNNING_STATUSES, Attempt, AttemptedRollout

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT = 5.0  # seconds to write the last statuses to a store that may be gone


class _Claim(NamedTuple):
    rollout_id: str
    worker_id: str | None


class ClaimTracker(LightningStoreThreaded):
    """Wraps a store and remembers each claimed attempt until its final status is written.

    Thread-safe, even if the inner store is not.

    Args:
        store: The store that keeps everything.
    """

    def __init__(self, store: LightningStore) -> None:
        super().__init__(store)
        self._claims: dict[str, _Claim] = {}

    def has_claims(self, worker_id: str | None = None) -> bool:
        """Tell whether this worker, or any worker, has an open attempt."""
        return any(
            worker_id is None or claim.worker_id == worker_id
            for claim in list(self._claims.values())
        )

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        claimed = await super().dequeue_rollout(worker_id, wait=wait)
        if claimed is not None:
            self._remember(claimed, worker_id)
        return claimed

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        claimed = await super().dequeue_many_rollouts(limit=limit, worker_id=worker_id, wait=wait)
        for rollout in claimed:
            self._remember(rollout, worker_id)
        return claimed

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Attempt:
        attempt = await super().update_attempt(*args, **kwargs)
        if attempt.status not in RUNNING_STATUSES:
            self._forget(attempt.attempt_id)
        return attempt

    def close_open_attempts(self, reason: str, worker_id: str | None = None) -> None:
        """Fail attempts whose workers are gone and will write no final status.

        The store decides whether a rollout is retried (its retry condition). Blocks for a few
        seconds at most; errors of an unreachable store are logged. Must not be called in a thread
        with a running event loop.

        Args:
            reason: Reason for the attempts' metadata (key ``error``).
            worker_id: The worker that is gone; None for all of them.
        """
        gone = {
            attempt_id: claim
            for attempt_id, claim in list(self._claims.items())
            if worker_id is None or claim.worker_id == worker_id
        }
        if not gone:
            return
        try:
            asyncio.run(asyncio.wait_for(self._fail(gone, reason), _CLOSE_TIMEOUT))
        except Exception:
            logger.exception("Attempts of this run may be left open")

    async def _fail(self, gone: dict[str, _Claim], reason: str) -> None:
        for attempt_id, (rollout_id, _) in gone.items():
            attempts = {a.attempt_id: a for a in await self.query_attempts(rollout_id)}
            attempt = attempts.get(attempt_id)
            if attempt is None or attempt.status not in RUNNING_STATUSES:
                self._forget(attempt_id)  # the watchdog has already ended it
                continue
            metadata = {**(attempt.metadata or {}), "error": reason}
            await self.update_attempt(rollout_id, attempt_id, status="failed", metadata=metadata)
            logger.warning("Failed attempt %s of rollout %s: %s", attempt_id, rollout_id, reason)

    def _remember(self, rollout: AttemptedRollout, worker_id: str | None) -> None:
        self._claims[rollout.attempt.attempt_id] = _Claim(rollout.rollout_id, worker_id)

    def _forget(self, attempt_id: str) -> None:
        self._claims.pop(attempt_id, None)
