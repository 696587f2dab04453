"""Notifies runners on other machines of the end of a run.

They share no stop event with the algorithm, but every runner claims work. :class:`RunStore`, on the
server, refuses claims after the end of the run with :class:`~agl_core.errors.RunEndedError`;
:class:`RunnerClient`, in the runner, then sets the runner's stop event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from agl_core.errors import RunEndedError, StoreUnavailableError
from agl_core.execution import ClaimTracker, ThreadingEvent
from agl_core.lifecycle import was_interrupted
from agl_core.store import UNSET, LightningStore, Unset
from agl_core.types import RUNNING_STATUSES, Attempt, AttemptedRollout, ExecutionEvent, Worker
from agl_store_http import LightningStoreClient

__all__ = ["RunStore", "RunnerClient"]

logger = logging.getLogger(__name__)

_CLAIM_INTERVAL: Final = 30.0  # seconds; a runner that waits for work claims more often
_COMING: Final = "coming"  # key of a worker's first heartbeat
_LEAVING: Final = "leaving"  # key of a worker's last heartbeat
_LEAVE_TIMEOUT: Final = 1.0  # seconds
_FIRST_PROBES: Final = (0.1, 0.2, 0.5)  # seconds between the first probes of a lost server
_EXPLAIN_TIMEOUT: Final = 5.0  # seconds
_PROBE_INTERVAL: Final = 1.0  # seconds between later probes


class RunStore(ClaimTracker):
    """A store that hands out work until the run ends, and tracks which workers were notified.

    Thread-safe.

    Args:
        store: The store that keeps everything.
    """

    def __init__(self, store: LightningStore) -> None:
        super().__init__(store)
        self._ended = ThreadingEvent()
        self._all_done = ThreadingEvent()
        self._progressed: set[str] = set()
        """Workers that finished an attempt since they were released last."""
        self._broken_off: dict[str, Attempt] = {}
        """The last attempt of each worker, if it did not fail by the agent's own error."""
        self._last_claims: dict[str, float] = {}
        """Workers that will claim again, with the monotonic time of their last claim."""

    def end_run(self) -> None:
        """Hand out no more work, and refuse the waiting claims."""
        oldest = time.monotonic() - _CLAIM_INTERVAL
        for worker_id, claimed in list(self._last_claims.items()):
            if claimed < oldest and not self.has_claims(worker_id):
                self._last_claims.pop(worker_id, None)  # the worker has left
        self._ended.set()
        self._check_done()

    def release(self, worker_id: str, reason: str) -> bool:
        """Stop waiting for a worker that is gone, and fail its open attempts.

        Args:
            worker_id: The worker.
            reason: The cause, for the attempts' metadata.

        Returns:
            Whether the worker had finished an attempt since it was released last.
        """
        progressed = worker_id in self._progressed
        self.close_open_attempts(reason, worker_id)
        self._progressed.discard(worker_id)
        self._last_claims.pop(worker_id, None)
        self._check_done()
        return progressed

    def explain(self, worker_id: str, cause: str) -> None:
        """Put a cause first in the error of a worker's last attempt, if it was interrupted.

        A runner that is stopped from outside does not know why. Blocks for a few seconds at most;
        errors of an unreachable store are logged. Must not be called in a thread with a running
        event loop.

        Args:
            worker_id: The worker, which is gone.
            cause: Why it was stopped.
        """
        attempt = self._broken_off.pop(worker_id, None)
        said = {} if attempt is None else attempt.metadata or {}
        if attempt is None or cause in said["error"]:
            return
        metadata = {**said, "error": f"{cause}; {said['error']}"}
        change = partial(super().update_attempt, attempt.rollout_id, attempt.attempt_id)
        try:
            asyncio.run(asyncio.wait_for(change(metadata=metadata), _EXPLAIN_TIMEOUT))
        except Exception:
            logger.exception("Attempt %s was ended: %s", attempt.attempt_id, cause)

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Attempt:
        attempt = await super().update_attempt(*args, **kwargs)
        if attempt.worker_id is not None and attempt.status not in RUNNING_STATUSES:
            self._progressed.add(attempt.worker_id)
            if was_interrupted(attempt):
                self._broken_off[attempt.worker_id] = attempt
            else:
                self._broken_off.pop(attempt.worker_id, None)
        return attempt

    async def wait_for_workers(self, timeout: float) -> None:
        """Wait until every worker has finished its attempt and was notified of the end of the run.

        Args:
            timeout: Seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._all_done.wait_async()
        except TimeoutError:
            names = ", ".join(self._last_claims) or "a runner"
            logger.warning("No sign of %s in the last %g s", names, timeout)

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        claimed = await self.dequeue_many_rollouts(limit=1, worker_id=worker_id, wait=wait)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        if self._ended.is_set():
            raise self._refusal(worker_id)
        if worker_id is not None:
            self._last_claims[worker_id] = time.monotonic()
        claim = super().dequeue_many_rollouts
        claimed = await claim(limit=limit, worker_id=worker_id)
        if claimed or wait <= 0 or limit <= 0:
            return claimed
        waiting = asyncio.ensure_future(claim(limit=limit, worker_id=worker_id, wait=wait))
        ended = asyncio.ensure_future(self._ended.wait_async())
        try:
            await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            waiting.cancel()  # no effect if it is done
            await asyncio.wait((waiting,))
        if waiting.cancelled():
            raise self._refusal(worker_id)
        return waiting.result()

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        worker = await super().update_worker(worker_id, heartbeat_stats)
        if isinstance(heartbeat_stats, Unset):
            return worker
        if heartbeat_stats.get(_COMING):
            await asyncio.to_thread(self.close_open_attempts, "its runner died", worker_id)
        if heartbeat_stats.get(_LEAVING):
            self._last_claims.pop(worker_id, None)
            self._check_done()
        return worker

    def _refusal(self, worker_id: str | None) -> RunEndedError:
        if worker_id is not None:
            self._last_claims.pop(worker_id, None)
        self._check_done()
        return RunEndedError("the run has ended; there is no more work")

    def _forget(self, attempt_id: str) -> None:
        super()._forget(attempt_id)
        self._check_done()

    def _check_done(self) -> None:
        if self._ended.is_set() and not self._last_claims and not self.has_claims():
            self._all_done.set()


class RunnerClient(LightningStoreClient):
    """A runner's client of the store server; it sets the stop event when the run has ended.

    It also sets the event if the server was lost and has not come back in time. Until then calls
    wait for the server.

    Args:
        server_address: URL of the server.
        stop: The stop event of the runner.
        reconnect_timeout: Longest wait for a lost server, in seconds.
        siblings: The stop event of the other runners of this machine; the end of the run sets it.

    Attributes:
        lost: The error after which the server was given up; None if it was not.
    """

    def __init__(
        self,
        server_address: str,
        stop: ExecutionEvent,
        reconnect_timeout: float,
        siblings: ExecutionEvent | None = None,
    ) -> None:
        probes = (*_FIRST_PROBES, *[_PROBE_INTERVAL] * round(reconnect_timeout / _PROBE_INTERVAL))
        super().__init__(server_address, health_retry_delays=probes)
        self._stop = stop
        self._siblings = siblings
        self.lost: StoreUnavailableError | None = None

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().call(*args, **kwargs)
        except StoreUnavailableError as error:
            # After the end of the run the server may stop before the last heartbeat.
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
            logger.info("The run has ended")
            self._stop.set()
            if self._siblings is not None:
                self._siblings.set()
            return []

    async def come(self, worker_id: str) -> None:
        """Announce that a worker starts, so that the server fails what its predecessor left open.

        A runner may be started again under the same id before its death is noticed.
        """
        await self.update_worker(worker_id, {_COMING: True})

    async def leave(self, worker_id: str) -> None:
        """Announce that a worker ends, so that the server does not wait for it; 1 s at most."""
        if self.lost is None:
            try:
                async with asyncio.timeout(_LEAVE_TIMEOUT):
                    await self.update_worker(worker_id, {_LEAVING: True})
            except (StoreUnavailableError, TimeoutError) as error:
                logger.debug("%s could not announce its end: %r", worker_id, error)
