"""The store of one run, seen from both ends: a server that can end it, a client that learns it.

A runner on another machine shares no stop event with the algorithm. It is told with the answer to
the one question it always asks: when the run is over, its next claim is refused with
:class:`~agl_core.errors.RunEndedError` instead of being left to wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from agl_core.errors import RunEndedError, StoreUnavailableError
from agl_core.execution import ClaimTracker, ThreadingEvent
from agl_core.store import UNSET, LightningStore, Unset
from agl_core.types import AttemptedRollout, ExecutionEvent, Worker
from agl_store_http import LightningStoreClient
from agl_store_http.client.transport import Reply

__all__ = ["RunStore", "RunnerClient"]

logger = logging.getLogger(__name__)

_LONGEST_SILENCE: Final = 30.0  # seconds; a runner that waits for work asks more often
_LEAVING: Final = "leaving"  # key of a worker's last heartbeat
_LEAVE_TIMEOUT: Final = 1.0  # seconds
_FIRST_PROBES: Final = (0.1, 0.2, 0.5)  # seconds between looks for a server that was just lost
_PROBE_INTERVAL: Final = 1.0  # seconds between looks for it later


class RunStore(ClaimTracker):
    """A store that hands out work until the run is over, and knows when everybody was told.

    Thread-safe.

    Args:
        store: The store that keeps everything.
    """

    def __init__(self, store: LightningStore) -> None:
        super().__init__(store)
        self._over = ThreadingEvent()
        self._settled = ThreadingEvent()
        self._asked: dict[str, float] = {}
        """Workers that will ask for work again, by the time when they last did."""

    def end_run(self) -> None:
        """Hand out no more work; claims that wait for some are refused now."""
        gone = time.monotonic() - _LONGEST_SILENCE
        for worker_id, asked in list(self._asked.items()):
            if asked < gone and not self.has_claims(worker_id):
                self._asked.pop(worker_id, None)
        self._over.set()
        self._note_settled()

    def release(self, worker_id: str, reason: str) -> None:
        """Expect nothing more of a worker that is gone; fail what it was running.

        Args:
            worker_id: The worker.
            reason: Why, for the attempts' metadata.
        """
        self.close_open_attempts(reason, worker_id)
        self._asked.pop(worker_id, None)
        self._note_settled()

    async def wait_settled(self, timeout: float) -> None:
        """Wait until all workers have finished what they run and know of the end of the run.

        Args:
            timeout: Seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._settled.wait_async()
        except TimeoutError:
            logger.warning("Not heard from again: %s", ", ".join(self._asked) or "a runner")

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        claimed = await self.dequeue_many_rollouts(limit=1, worker_id=worker_id, wait=wait)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        if self._over.is_set():
            raise self._refusal(worker_id)
        if worker_id is not None:
            self._asked[worker_id] = time.monotonic()
        claim = super().dequeue_many_rollouts
        claimed = await claim(limit=limit, worker_id=worker_id)
        if claimed or wait <= 0 or limit <= 0:
            return claimed
        waiting = asyncio.ensure_future(claim(limit=limit, worker_id=worker_id, wait=wait))
        over = asyncio.ensure_future(self._over.wait_async())
        try:
            await asyncio.wait((waiting, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            waiting.cancel()  # nothing happens if it is done
            await asyncio.wait((waiting,))
        if waiting.cancelled():
            raise self._refusal(worker_id)
        return waiting.result()

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        worker = await super().update_worker(worker_id, heartbeat_stats)
        if not isinstance(heartbeat_stats, Unset) and heartbeat_stats.get(_LEAVING):
            self._asked.pop(worker_id, None)
            self._note_settled()
        return worker

    def _refusal(self, worker_id: str | None) -> RunEndedError:
        if worker_id is not None:
            self._asked.pop(worker_id, None)
        self._note_settled()
        return RunEndedError("the run is over; there is no more work")

    def _forget(self, attempt_id: str) -> None:
        super()._forget(attempt_id)
        self._note_settled()

    def _note_settled(self) -> None:
        if self._over.is_set() and not self._asked and not self.has_claims():
            self._settled.set()


class RunnerClient(LightningStoreClient):
    """A runner's way to the store; sets the stop event when there is nothing left to run for.

    That is when the server says that the run is over, or when it was lost and has not come back in
    time. Until then every call sits out the server's absence.

    Args:
        server_address: URL of the server.
        stop: The stop event of the runner.
        patience: Seconds to wait for a lost server.
        siblings: The stop event of the runners beside this one; the end of the run sets it too.

    Attributes:
        lost: Why the server was given up; None if it was not.
    """

    def __init__(
        self,
        server_address: str,
        stop: ExecutionEvent,
        patience: float,
        siblings: ExecutionEvent | None = None,
    ) -> None:
        probes = (*_FIRST_PROBES, *[_PROBE_INTERVAL] * round(patience / _PROBE_INTERVAL))
        super().__init__(server_address, health_retry_delays=probes)
        self._stop = stop
        self._siblings = siblings
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
            if self._siblings is not None:
                self._siblings.set()
            return []

    async def leave(self, worker_id: str) -> None:
        """Say that a worker ends, so that nobody waits for it; takes a second at most."""
        if self.lost is None:
            try:
                async with asyncio.timeout(_LEAVE_TIMEOUT):
                    await self.update_worker(worker_id, {_LEAVING: True})
            except (StoreUnavailableError, TimeoutError) as error:
                logger.debug("%s left without a word: %r", worker_id, error)
