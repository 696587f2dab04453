"""Claims rollouts from the store's queue, and waits while it is empty."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from agl_core.errors import PermissionDeniedError
from agl_core.types import QUEUING_STATUSES, RUNNING_STATUSES
from agl_runner.heartbeat import jittered

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import AttemptedRollout, RolloutStatus

logger = logging.getLogger(__name__)

_RUNNING: Final[list[RolloutStatus]] = sorted(RUNNING_STATUSES)
_UNFINISHED: Final[list[RolloutStatus]] = sorted(QUEUING_STATUSES | RUNNING_STATUSES)
_HAND_BACK_TIMEOUT: Final = 5.0
"""Seconds: a stop must not wait long for a store that is away."""
_MIN_WAIT: Final = 0.01
"""Seconds: a poll interval of 0 would keep the store busy."""
_MOST_PER_CLAIM: Final = 64
"""Leaves work for other runners, which would be idle if one claimed the whole queue."""


class Claims:
    """A worker's claims on the queue.

    Args:
        store: The store with the queue.
        worker_id: The worker's id in the store.
        stopped: Done when the worker must not claim any more.
        wait: Longest time in seconds that one call waits for work; also the pause after a failure.
        jitter: Largest random change of a pause, in seconds.
        until_idle: End when no rollout is queued or running.
    """

    def __init__(
        self,
        store: LightningStore,
        worker_id: str,
        stopped: asyncio.Future[None],
        *,
        wait: float,
        jitter: float,
        until_idle: bool,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._stopped = stopped
        self._wait = max(_MIN_WAIT, wait)
        self._jitter = jitter
        self._until_idle = until_idle

    async def next(self, limit: int = 1) -> Sequence[AttemptedRollout]:
        """Wait for work and claim it; nothing means that the worker must end.

        Args:
            limit: Largest number of rollouts to claim.

        Raises:
            PermissionDeniedError: The store does not let this worker claim. Other errors are
                logged, and the claim is repeated.
        """
        at_once = True  # a claim that returns at once needs no task that waits for the stop
        while not self._stopped.done():
            try:
                if at_once:
                    claimed = await self._claim(limit, 0.0)
                else:
                    claimed = await self._claim_waiting(limit)
                if claimed:
                    return claimed
                if self._until_idle and not await self._work_left():
                    return ()
            except PermissionDeniedError:
                raise
            except Exception as error:
                logger.warning("%s: no work could be claimed: %r", self._worker_id, error)
                await asyncio.wait((self._stopped,), timeout=jittered(self._wait, self._jitter))
            at_once = False
        return ()

    async def _claim(self, limit: int, wait: float) -> Sequence[AttemptedRollout]:
        if limit > 1:
            return await self._store.dequeue_many_rollouts(
                limit=min(limit, _MOST_PER_CLAIM), worker_id=self._worker_id, wait=wait
            )
        claimed = await self._store.dequeue_rollout(self._worker_id, wait=wait)
        return () if claimed is None else (claimed,)

    async def _claim_waiting(self, limit: int) -> Sequence[AttemptedRollout]:
        """Claim until the wait is over, the worker must end, or the running rollouts have ended."""
        deadline = asyncio.get_running_loop().time() + self._wait
        claim = asyncio.ensure_future(self._claim(limit, self._wait))
        reasons: list[asyncio.Future[Any]] = [self._stopped]
        if self._until_idle:
            reasons.append(asyncio.ensure_future(self._running_ended()))
        try:
            await asyncio.wait((claim, *reasons), return_when=asyncio.FIRST_COMPLETED)
            claimed = await _withdraw(claim)
            if not claimed:
                # The call returned early: the worker must end, or the store ignores ``wait``.
                left = max(0.0, deadline - asyncio.get_running_loop().time())
                await asyncio.wait(reasons, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            return claimed
        except asyncio.CancelledError:
            # The store may have handed out rollouts already, which no other worker would run.
            await to_the_end(self._hand_back_withdrawn(claim))
            raise
        finally:
            for reason in reasons[1:]:
                reason.cancel()

    async def _hand_back_withdrawn(self, claim: asyncio.Future[Sequence[AttemptedRollout]]) -> None:
        try:
            claimed = await _withdraw(claim)
        except Exception as error:
            logger.warning("%s: a claim failed while it ended: %r", self._worker_id, error)
        else:
            await self.hand_back(claimed)

    async def hand_back(self, claimed: Sequence[AttemptedRollout]) -> None:
        """Return rollouts whose agent has not run to the queue. Errors are logged."""
        for one in claimed:
            ids = one.rollout_id, one.attempt.attempt_id
            try:
                async with asyncio.timeout(_HAND_BACK_TIMEOUT):
                    await self._store.return_claim(*ids)
            except Exception as error:
                logger.warning(
                    "%s: rollout %s was claimed, not run, and cannot be returned to the queue: %r",
                    self._worker_id,
                    one.rollout_id,
                    error,
                )

    async def _work_left(self) -> bool:
        page = await self._store.query_rollouts(status_in=_UNFINISHED, limit=0)
        return page.total > 0

    async def _running_ended(self) -> None:
        running = await self._store.query_rollouts(status_in=_RUNNING)
        ids = [rollout.rollout_id for rollout in running]
        await self._store.wait_for_rollouts(rollout_ids=ids, timeout=self._wait)


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that ends soon, whatever cancels this task meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,))
    task.result()


async def _withdraw(
    claim: asyncio.Future[Sequence[AttemptedRollout]],
) -> Sequence[AttemptedRollout]:
    """Cancel a claim; return the attempts if the claim had already succeeded."""
    claim.cancel()
    await asyncio.wait((claim,))
    return () if claim.cancelled() else claim.result()
