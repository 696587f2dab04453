"""The store of one run, seen from both ends: a server that can end it, a client that learns it.

A runner on another machine shares no stop event with the algorithm. It is told with the answer to
the one question it always asks: when the run is over, its next claim is refused with
:class:`~agl_core.errors.RunEndedError` instead of being left to wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from agl_core.errors import RunEndedError, StoreUnavailableError
from agl_core.execution.events import ExecutionEvent, ThreadingEvent
from agl_core.store.base import LightningStore
from agl_core.store.client import LightningStoreClient
from agl_core.store.client.transport import Reply
from agl_core.store.threaded import LightningStoreThreaded
from agl_core.types import RUNNING_STATUSES, Attempt, AttemptedRollout

__all__ = ["RunStore", "RunnerClient"]

logger = logging.getLogger(__name__)

_FIRST_PROBES: Final = (0.1, 0.2, 0.5)  # seconds between looks for a server that was just lost
_PROBE_INTERVAL: Final = 1.0  # seconds between looks for it later


class RunStore(LightningStoreThreaded):
    """A store that hands out work until the run is over, and knows when all of it came back.

    Thread-safe.

    Args:
        store: The store that keeps everything.
    """

    def __init__(self, store: LightningStore) -> None:
        super().__init__(store)
        self._over = ThreadingEvent()
        self._claimed: set[str] = set()
        self._settled = ThreadingEvent()

    def end_run(self) -> None:
        """Hand out no more work; claims that wait for some are refused now."""
        self._over.set()
        self._note_settled()

    async def wait_settled(self, timeout: float) -> None:
        """Wait until every attempt that was handed out has its final status, or until the timeout.

        Args:
            timeout: Seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._settled.wait_async()
        except TimeoutError:
            logger.warning("%d attempts are still being run elsewhere", len(self._claimed))

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        claimed = await self.dequeue_many_rollouts(limit=1, worker_id=worker_id, wait=wait)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        if self._over.is_set():
            raise RunEndedError("the run is over; there is no more work")
        claimed = await super().dequeue_many_rollouts(limit=limit, worker_id=worker_id)
        if not claimed and wait > 0 and limit > 0:
            claimed = await self._claim_waiting(limit, worker_id, wait)
        self._claimed.update(rollout.attempt.attempt_id for rollout in claimed)
        return claimed

    async def _claim_waiting(
        self, limit: int, worker_id: str | None, wait: float
    ) -> Sequence[AttemptedRollout]:
        claim = asyncio.ensure_future(
            super().dequeue_many_rollouts(limit=limit, worker_id=worker_id, wait=wait)
        )
        over = asyncio.ensure_future(self._over.wait_async())
        try:
            await asyncio.wait((claim, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            claim.cancel()  # nothing happens if it is done
            await asyncio.wait((claim,))
        if claim.cancelled():
            raise RunEndedError("the run is over; there is no more work")
        return claim.result()

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Attempt:
        attempt = await super().update_attempt(*args, **kwargs)
        if attempt.status not in RUNNING_STATUSES:
            self._claimed.discard(attempt.attempt_id)
            self._note_settled()
        return attempt

    def _note_settled(self) -> None:
        if self._over.is_set() and not self._claimed:
            self._settled.set()


class RunnerClient(LightningStoreClient):
    """A runner's way to the store; sets the stop event when there is nothing left to run for.

    That is when the server says that the run is over, or when it was lost and has not come back in
    time. Until then every call sits out the server's absence.

    Args:
        server_address: URL of the server.
        stop: The stop event of the runner.
        patience: Seconds to wait for a lost server.

    Attributes:
        lost: Why the server was given up; None if it was not.
    """

    def __init__(self, server_address: str, stop: ExecutionEvent, patience: float) -> None:
        probes = (*_FIRST_PROBES, *[_PROBE_INTERVAL] * round(patience / _PROBE_INTERVAL))
        super().__init__(server_address, health_retry_delays=probes)
        self._stop = stop
        self.lost: StoreUnavailableError | None = None

    async def call(self, *args: Any, **kwargs: Any) -> Reply:
        try:
            return await super().call(*args, **kwargs)
        except StoreUnavailableError as error:
            # After the end of the run the server may go before our last heartbeat.
            if not self._stop.is_set():
                self.lost = error
                self._stop.set()
            raise

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        try:
            return await super().dequeue_many_rollouts(limit=limit, worker_id=worker_id, wait=wait)
        except RunEndedError:
            logger.info("The run is over")
            self._stop.set()
            return []
