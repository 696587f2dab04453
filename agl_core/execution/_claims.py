"""Tracks the attempts that a run has claimed and not finished, so that none stays open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

from agl_core.store import Interceptor, LightningStore, Next, StoreCall
from agl_core.types import RUNNING_STATUSES, Attempt, AttemptedRollout

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT: Final = 5.0  # seconds to write the last statuses to a store that may be gone
_AT_A_TIME: Final = 32
"""Attempts that are written at the same time. One after the other, 100 of them would not be
written in time to a store that answers in 30 ms."""


class _Claim(NamedTuple):
    rollout_id: str
    worker_id: str | None


class ClaimTracker(Interceptor):
    """Remembers each attempt that is claimed from a store until it ends or is returned.

    Thread-safe. For the store of one run; it belongs next to the store
    (``InterceptedStore(store, innermost=[claims])``), where it sees the claims that were made.
    """

    watches = ("dequeue_rollout", "dequeue_many_rollouts", "return_claim", "update_attempt")
    travels: ClassVar[bool] = False  # another process makes its own claims

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}

    def has_claims(self, worker_id: str | None = None) -> bool:
        """Tell whether this worker, or any worker, has an open attempt."""
        return any(
            worker_id is None or claim.worker_id == worker_id
            for claim in list(self._claims.values())
        )

    async def around(self, call: StoreCall, next: Next) -> Any:
        result = await next(call)
        if call.name == "update_attempt":
            self.note_attempt(result)
        elif call.name == "return_claim":
            self.forget(call.argument("attempt_id"))
        elif call.name == "dequeue_many_rollouts":
            self.note_claims(result, call.argument("worker_id"))
        elif result is not None:
            self.note_claims((result,), call.argument("worker_id"))
        return result

    def note_claims(self, claimed: Sequence[AttemptedRollout], worker_id: str | None) -> None:
        """Remember what a worker has claimed."""
        for rollout in claimed:
            self._claims[rollout.attempt.attempt_id] = _Claim(rollout.rollout_id, worker_id)

    def note_attempt(self, attempt: Attempt) -> None:
        """Forget the claim of an attempt that has ended."""
        if attempt.status not in RUNNING_STATUSES:
            self.forget(attempt.attempt_id)

    def forget(self, attempt_id: str) -> None:
        """Forget the claim of an attempt."""
        self._claims.pop(attempt_id, None)

    def close_open_attempts(
        self, store: LightningStore, reason: str, worker_id: str | None = None
    ) -> None:
        """Fail attempts whose workers are gone and will write no final status.

        The store decides whether a rollout is retried (its retry condition). Blocks for a few
        seconds at most; errors of an unreachable store are logged. Must not be called in a thread
        with a running event loop.

        Args:
            store: The store that they were claimed from.
            reason: Reason for the attempts' metadata (key ``error``).
            worker_id: The worker that is gone; None for all of them.
        """
        if self.has_claims(worker_id):
            asyncio.run(self.fail_open(lambda call: call.on(store), reason, worker_id))

    async def fail_open(self, perform: Next, reason: str, worker_id: str | None) -> None:
        """Fail attempts as :meth:`close_open_attempts` does, in an event loop.

        Args:
            perform: Passes a call to the store, like the ``next`` of an interceptor.
            reason: Reason for the attempts' metadata.
            worker_id: The worker that is gone; None for all of them.
        """
        gone = {
            attempt_id: claim
            for attempt_id, claim in list(self._claims.items())
            if worker_id is None or claim.worker_id == worker_id
        }
        try:
            await asyncio.wait_for(self._fail(perform, gone, reason), _CLOSE_TIMEOUT)
        except Exception:
            logger.exception("Attempts of this run may be left open")

    async def _fail(self, perform: Next, gone: dict[str, _Claim], reason: str) -> None:
        limit = asyncio.Semaphore(_AT_A_TIME)

        async def fail(attempt_id: str, rollout_id: str) -> None:
            async with limit:
                await self._fail_one(perform, attempt_id, rollout_id, reason)

        closing = (fail(attempt_id, claim.rollout_id) for attempt_id, claim in gone.items())
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if error is not None:
                raise error

    async def _fail_one(self, perform: Next, attempt_id: str, rollout_id: str, reason: str) -> None:
        attempts: Sequence[Attempt] = await perform(StoreCall.of("query_attempts", rollout_id))
        attempt = {each.attempt_id: each for each in attempts}.get(attempt_id)
        if attempt is not None and attempt.status in RUNNING_STATUSES:
            metadata = {**(attempt.metadata or {}), "error": reason}
            change = {"status": "failed", "metadata": metadata}
            ids = rollout_id, attempt_id
            await perform(StoreCall("update_attempt", ids, change))
            logger.warning("Failed attempt %s of rollout %s: %s", *reversed(ids), reason)
        # else the watchdog has ended it
        self.forget(attempt_id)
