"""Stops attempts that the store has taken from this worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agl_core.errors import AgentCancelledError, AgentError, AgentTimeoutError
from agl_core.types import AttemptedRollout

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import Rollout, Worker
    from agl_runner.attempt import AttemptRun

logger = logging.getLogger(__name__)


class Oversight:
    """Compares the attempts that a worker runs with those of the store.

    The reply to a heartbeat names the attempt that the worker runs according to the store. Only if
    the worker runs others are their rollouts read from the store, in one query.

    Args:
        store: The store of the rollouts.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._running: dict[tuple[str, str], AttemptRun] = {}
        self._looking: set[asyncio.Task[None]] = set()

    @contextmanager
    def over(self, run: AttemptRun) -> Generator[None]:
        """Watch an attempt within a ``with`` block."""
        # A store written for 0.3 may number the attempts of each rollout.
        key = (_id(run), run.rollout.attempt.attempt_id)
        self._running[key] = run
        try:
            yield
        finally:
            del self._running[key]

    def running(self) -> list[str]:
        """Return the ids of the attempts that run; any thread may call this."""
        return [attempt_id for _, attempt_id in list(self._running)]

    def heard(self, worker: Worker) -> None:
        """Process the reply to a heartbeat; called on the event loop of the attempts."""
        current = worker.current_attempt_id
        others = [run for (_, name), run in self._running.items() if name != current]
        if others:
            look = asyncio.create_task(self._look(others))
            self._looking.add(look)
            look.add_done_callback(self._looking.discard)

    async def _look(self, runs: Sequence[AttemptRun]) -> None:
        try:
            found = await self._store.query_rollouts(rollout_id_in=[_id(run) for run in runs])
            rollouts = {rollout.rollout_id: rollout for rollout in found}
            for run in runs:
                reason = await self._reason_to_stop(run, rollouts.get(_id(run)))
                if reason is not None:
                    logger.warning("%s: stopping the agent: %s", _id(run), reason)
                    run.stop(reason)
        except Exception as error:
            first, more = _id(runs[0]), len(runs) - 1
            logger.warning(
                "%s%s: could not check whether it continues: %r",
                first,
                f" and {more} more" if more else "",
                error,
            )

    async def _reason_to_stop(self, run: AttemptRun, rollout: Rollout | None) -> AgentError | None:
        rollout_id, own = run.rollout.rollout_id, run.rollout.attempt
        if rollout is None:
            return AgentCancelledError(f"rollout {rollout_id} is gone from the store")
        if rollout.status == "cancelled":
            return AgentCancelledError(f"rollout {rollout_id} was cancelled")
        if isinstance(rollout, AttemptedRollout):
            latest = rollout.attempt
        else:
            latest = await self._store.get_latest_attempt(rollout_id)
        if latest is not None and latest.sequence_id > own.sequence_id:
            return AgentCancelledError(f"attempt {own.attempt_id} was superseded by another")
        if latest is not None and latest.status == "timeout":
            return AgentTimeoutError(f"attempt {own.attempt_id} exceeded its rollout's timeout")
        return None


def _id(run: AttemptRun) -> str:
    return run.rollout.rollout_id
