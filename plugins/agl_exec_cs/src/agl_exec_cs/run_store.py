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
from agl_core.status import was_interrupted
from agl_core.store import (
    UNSET,
    InterceptedStore,
    Interceptor,
    LightningStore,
    Next,
    StoreCall,
    Unset,
)
from agl_core.types import RUNNING_STATUSES, Attempt, AttemptedRollout, ExecutionEvent, Worker
from agl_store_http import LightningStoreClient
from agl_store_kit import LightningStoreThreaded

__all__ = ["RunClaims", "RunStore", "RunnerClient"]

logger = logging.getLogger(__name__)

_CLAIM_INTERVAL: Final = 30.0  # seconds; a runner that waits for work claims more often
_COMING: Final = "coming"  # key of a worker's first heartbeat
_LEAVING: Final = "leaving"  # key of a worker's last heartbeat
_LEAVE_TIMEOUT: Final = 1.0  # seconds
_FIRST_PROBES: Final = (0.1, 0.2, 0.5)  # seconds between the first probes of a lost server
_EXPLAIN_TIMEOUT: Final = 5.0  # seconds
_PROBE_INTERVAL: Final = 1.0  # seconds between later probes


class RunClaims(ClaimTracker):
    """Tracks the claims of a run, refuses claims after its end, and tracks who was notified.

    Thread-safe.
    """

    watches = ("dequeue_rollout", "dequeue_many_rollouts", "update_attempt", "update_worker")

    def __init__(self) -> None:
        super().__init__()
        self._ended = ThreadingEvent()
        self._all_done = ThreadingEvent()
        self._progressed: set[str] = set()
        """Workers that finished an attempt since they were released last."""
        self._broken_off: dict[str, Attempt] = {}
        """The last attempt of each worker, if it did not fail by the agent's own error."""
        self._last_claims: dict[str, float] = {}
        """Workers that will claim again, with the monotonic time of their last claim."""

    async def around(self, call: StoreCall, next: Next) -> Any:
        if call.name == "update_worker":
            return await self._update_worker(call, next)
        if call.name == "update_attempt":
            return await self._update_attempt(call, next)
        return await self._claim(call, partial(super().around, next=next))

    async def _claim(self, call: StoreCall, claim: Next) -> Any:
        worker_id: str | None = call.argument("worker_id")
        if self._ended.is_set():
            raise self._refusal(worker_id)
        if worker_id is not None:
            self._last_claims[worker_id] = time.monotonic()
        claimed = await claim(call.replace(wait=0.0))
        several = call.name == "dequeue_many_rollouts"
        if claimed or call.argument("wait") <= 0 or (several and call.argument("limit") <= 0):
            return claimed
        waiting = asyncio.ensure_future(claim(call))
        ended = asyncio.ensure_future(self._ended.wait_async())
        ended.add_done_callback(lambda _: waiting.cancel())  # no effect if it is done
        try:
            return await waiting
        except asyncio.CancelledError:
            if claimed := _result_of(waiting):
                return claimed  # no caller would hold what this call has claimed
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise self._refusal(worker_id) from None
        finally:
            ended.cancel()

    async def _update_attempt(self, call: StoreCall, next: Next) -> Attempt:
        attempt: Attempt = await super().around(call, next)
        ends = call.argument("status") is not UNSET and attempt.status not in RUNNING_STATUSES
        if ends and attempt.worker_id is not None:
            self._progressed.add(attempt.worker_id)
            if was_interrupted(attempt):
                self._broken_off[attempt.worker_id] = attempt
            else:
                self._broken_off.pop(attempt.worker_id, None)
        return attempt

    async def _update_worker(self, call: StoreCall, next: Next) -> Worker:
        worker: Worker = await next(call)
        stats = call.argument("heartbeat_stats")
        if isinstance(stats, Unset):
            return worker
        worker_id: str = call.argument("worker_id")
        if stats.get(_COMING):

            def perform(call: StoreCall) -> Any:
                change = call.name == "update_attempt"
                return self._update_attempt(call, next) if change else next(call)

            await self.fail_open(perform, "its runner died", worker_id)
        if stats.get(_LEAVING):
            self._last_claims.pop(worker_id, None)
            self._check_done()
        return worker

    def end_run(self) -> None:
        """Hand out no more work, and refuse the waiting claims."""
        oldest = time.monotonic() - _CLAIM_INTERVAL
        for worker_id, claimed in list(self._last_claims.items()):
            if claimed < oldest and not self.has_claims(worker_id):
                self._last_claims.pop(worker_id, None)  # the worker has left
        self._ended.set()
        self._check_done()

    def has_progressed(self, worker_id: str) -> bool:
        """Tell whether a worker has finished an attempt since it was released last."""
        return worker_id in self._progressed

    def release(self, worker_id: str) -> None:
        """Stop waiting for a worker that is gone and has no open attempts."""
        self._progressed.discard(worker_id)
        self._last_claims.pop(worker_id, None)
        self._check_done()

    def take_broken_off(self, worker_id: str) -> Attempt | None:
        """Return the last attempt of a worker, once, if it was interrupted."""
        return self._broken_off.pop(worker_id, None)

    async def wait_until_done(self, timeout: float) -> None:
        """Wait until every worker was notified of the end; log those that were not in time."""
        try:
            async with asyncio.timeout(timeout):
                await self._all_done.wait_async()
        except TimeoutError:
            names = ", ".join(self._last_claims) or "a runner"
            logger.warning("No sign of %s in the last %g s", names, timeout)

    def forget(self, attempt_id: str) -> None:
        super().forget(attempt_id)
        self._check_done()

    def _refusal(self, worker_id: str | None) -> RunEndedError:
        if worker_id is not None:
            self._last_claims.pop(worker_id, None)
        self._check_done()
        return RunEndedError("the run has ended; there is no more work")

    def _check_done(self) -> None:
        if self._ended.is_set() and not self._last_claims and not self.has_claims():
            self._all_done.set()


def _result_of(work: asyncio.Future[Any]) -> Any:
    """Return the result of work that has one; None if it goes on, failed or was cancelled."""
    has_result = work.done() and not work.cancelled() and work.exception() is None
    return work.result() if has_result else None


class RunStore(LightningStoreThreaded):
    """A store that hands out work until the run ends, and tracks which workers were notified.

    Thread-safe.

    Args:
        store: The store that keeps everything.
        *interceptors: Interceptors that a subclass presets, next to the store.
    """

    def __init__(self, store: LightningStore, *interceptors: Interceptor) -> None:
        self._run = RunClaims()
        super().__init__(InterceptedStore(store, innermost=(*interceptors, self._run)))

    def end_run(self) -> None:
        """Hand out no more work, and refuse the waiting claims."""
        self._run.end_run()

    def close_open_attempts(self, reason: str, worker_id: str | None = None) -> None:
        """Fail open attempts; see :meth:`ClaimTracker.close_open_attempts`."""
        self._run.close_open_attempts(self, reason, worker_id)

    def release(self, worker_id: str, reason: str) -> bool:
        """Stop waiting for a worker that is gone, and fail its open attempts.

        Args:
            worker_id: The worker.
            reason: The cause, for the attempts' metadata.

        Returns:
            Whether the worker had finished an attempt since it was released last.
        """
        progressed = self._run.has_progressed(worker_id)
        self.close_open_attempts(reason, worker_id)
        self._run.release(worker_id)
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
        attempt = self._run.take_broken_off(worker_id)
        said = {} if attempt is None else attempt.metadata or {}
        if attempt is None or cause in said["error"]:
            return
        metadata = {**said, "error": f"{cause}; {said['error']}"}
        change = partial(self.update_attempt, attempt.rollout_id, attempt.attempt_id)
        try:
            asyncio.run(asyncio.wait_for(change(metadata=metadata), _EXPLAIN_TIMEOUT))
        except Exception:
            logger.exception("Attempt %s was ended: %s", attempt.attempt_id, cause)

    async def wait_for_workers(self, timeout: float) -> None:
        """Wait until every worker has finished its attempt and was notified of the end of the run.

        Args:
            timeout: Seconds.
        """
        await self._run.wait_until_done(timeout)


class RunnerClient(LightningStoreClient):
    """A runner's client of the store server; it sets the stop event when the run has ended.

    It also sets the event if the server was lost and has not come back in time. Until then calls
    wait for the server.

    Args:
        server_address: URL of the server.
        stop: The stop event of the runner.
        reconnect_timeout: Longest wait for a lost server, in seconds.
        siblings: The stop event of the other runners of this machine; the end of the run sets it.
        auth_token: Access token; None reads ``AGL_AUTH_TOKEN``.

    Attributes:
        lost: The error after which the server was given up; None if it was not.
        claimed: Whether a worker has claimed work; whoever watches it resets it.
    """

    def __init__(
        self,
        server_address: str,
        stop: ExecutionEvent,
        reconnect_timeout: float,
        siblings: ExecutionEvent | None = None,
        auth_token: str | None = None,
    ) -> None:
        probes = (*_FIRST_PROBES, *[_PROBE_INTERVAL] * round(reconnect_timeout / _PROBE_INTERVAL))
        super().__init__(server_address, health_retry_delays=probes, auth_token=auth_token)
        self._stop = stop
        self._siblings = siblings
        self.lost: StoreUnavailableError | None = None
        self.claimed = False

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
            found = await super().dequeue_many_rollouts(limit=limit, worker_id=worker_id, wait=wait)
        except RunEndedError:
            logger.info("The run has ended")
            self._stop.set()
            if self._siblings is not None:
                self._siblings.set()
            return []
        self.claimed |= bool(found)
        return found

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
