"""Stops attempts that the store has taken from this worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agl_core.errors import AgentCancelledError, AgentError, AgentTimeoutError

if TYPE_CHECKING:
    from agl_core.runner._attempt import AttemptRun
    from agl_core.store import LightningStore
    from agl_core.types import Worker

logger = logging.getLogger(__name__)


class Oversight:
    """Compares the attempts that a worker runs with the store's record of the worker.

    The reply to a heartbeat names the attempt that the worker runs according to the store. Only if
    the worker runs another one is the rollout read from the store.

    Args:
        store: The store of the rollouts.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._running: dict[str, AttemptRun] = {}
        self._looking: set[asyncio.Task[None]] = set()

    @contextmanager
    def over(self, run: AttemptRun) -> Generator[None]:
        """Watch an attempt within a ``with`` block."""
        attempt_id = run.rollout.attempt.attempt_id
        self._running[attempt_id] = run
        try:
            yield
        finally:
            del self._running[attempt_id]

    def heard(self, worker: Worker) -> None:
        """Process the reply to a heartbeat; called on the event loop of the attempts."""
        for attempt_id, run in self._running.items():
            if attempt_id != worker.current_attempt_id:
                look = asyncio.create_task(self._look(run))
                self._looking.add(look)
                look.add_done_callback(self._looking.discard)

    async def _look(self, run: AttemptRun) -> None:
        try:
            reason = await self._reason_to_stop(run)
        except Exception as error:
            logger.warning("%s: could not check whether it continues: %r", _id(run), error)
        else:
            if reason is not None:
                logger.warning("%s: stopping the agent: %s", _id(run), reason)
                run.stop(reason)

    async def _reason_to_stop(self, run: AttemptRun) -> AgentError | None:
        rollout_id, own = run.rollout.rollout_id, run.rollout.attempt
        rollout = await self._store.get_rollout_by_id(rollout_id)
        if rollout is None:
            return AgentCancelledError(f"rollout {rollout_id} is gone from the store")
        if rollout.status == "cancelled":
            return AgentCancelledError(f"rollout {rollout_id} was cancelled")
        attempts = await self._store.query_attempts(rollout_id)
        if any(attempt.sequence_id > own.sequence_id for attempt in attempts):
            return AgentCancelledError(f"attempt {own.attempt_id} was superseded by another")
        for attempt in attempts:
            if attempt.attempt_id == own.attempt_id and attempt.status == "timeout":
                return AgentTimeoutError(f"attempt {own.attempt_id} exceeded its rollout's timeout")
        return None


def _id(run: AttemptRun) -> str:
    return run.rollout.rollout_id
