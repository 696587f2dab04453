"""Writes an attempt's final status, which must not be lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from agl_core.errors import AgentTimeoutError, StoreFullError, StoreUnavailableError, error_text
from agl_core.store import UNSET

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import Attempt, AttemptedRollout, AttemptStatus

logger = logging.getLogger(__name__)

FIRST_RETRY: Final = 0.1
"""Seconds; doubles up to the next constant. A store restarts in seconds."""
LAST_RETRY: Final = 5.0
CANCELLED_TIMEOUT: Final = 5.0
"""Longest time to write the final status after a cancellation, in seconds."""
_AWAY: Final = (StoreUnavailableError, StoreFullError, TimeoutError)
"""What a store raises that may take the write later. No repetition mends damaged data."""
_MAX_MESSAGE: Final = 4000
"""Characters: a message of an error may hold a whole response."""


async def write_final_status(
    store: LightningStore,
    rollout: AttemptedRollout,
    error: BaseException | None,
    facts: Mapping[str, Any] | None = None,
    *,
    timeout: float,
) -> AttemptStatus | None:
    """Write an attempt's final status; retries while the store is away or full, and if cancelled.

    An attempt that the watchdog has marked ``timeout`` keeps that status unless the agent
    succeeded after all: with ``failed`` a different retry condition would apply.

    Args:
        store: The store of the attempt.
        rollout: The claimed rollout with its attempt.
        error: The error that failed the attempt; None if it succeeded.
        facts: Further entries of the metadata of an attempt that failed.
        timeout: Seconds until the write is given up; after a cancellation 5 s at most.

    Returns:
        The status written, or None if the watchdog's status stays.

    Raises:
        StoreUnavailableError: The store did not accept it within the timeout.
        NotFoundError: The attempt is no longer in the store.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    delay = FIRST_RETRY
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                if error is None:
                    await _update(store, rollout, "succeeded")
                    return "succeeded"
                return await _write_failure(store, rollout, error, facts or {})
        except asyncio.CancelledError:
            # The status must still be written. The write is repeated, since the interrupted one may
            # have failed. Not re-raised: the canceller waits for the attempt's task to end.
            deadline = min(deadline, loop.time() + CANCELLED_TIMEOUT)
        except _AWAY as away:
            if loop.time() + delay >= deadline:
                raise StoreUnavailableError(
                    f"the store accepted no final status for attempt {rollout.attempt.attempt_id} "
                    f"of rollout {rollout.rollout_id}: {str(away) or 'it does not answer'}"
                ) from away
            logger.warning("%s: retrying the final status: %r", rollout.rollout_id, away)
            delay = await _pause(delay)


async def _pause(delay: float) -> float:
    try:
        await asyncio.sleep(delay)
    except asyncio.CancelledError:
        return FIRST_RETRY
    return min(delay * 2, LAST_RETRY)


async def _write_failure(
    store: LightningStore,
    rollout: AttemptedRollout,
    error: BaseException,
    facts: Mapping[str, Any],
) -> AttemptStatus | None:
    current = await _current(store, rollout)
    metadata = {**(current.metadata or {}), **error_metadata(error), **facts}
    if current.status == "timeout":
        await _update(store, rollout, None, metadata)
        return None
    status: AttemptStatus = "timeout" if isinstance(error, AgentTimeoutError) else "failed"
    await _update(store, rollout, status, metadata)
    return status


async def _current(store: LightningStore, rollout: AttemptedRollout) -> Attempt:
    """Return the attempt's current state; other writers may have changed it since the claim."""
    for attempt in await store.query_attempts(rollout.rollout_id, sort_order="desc"):
        if attempt.attempt_id == rollout.attempt.attempt_id:
            return attempt
    return rollout.attempt


async def _update(
    store: LightningStore,
    rollout: AttemptedRollout,
    status: AttemptStatus | None,
    metadata: dict[str, Any] | None = None,
) -> None:
    await store.update_attempt(
        rollout.rollout_id,
        rollout.attempt.attempt_id,
        status=UNSET if status is None else status,
        metadata=UNSET if metadata is None else metadata,
    )


def error_metadata(error: BaseException) -> dict[str, str]:
    """Return the entries of an attempt's metadata that describe an error.

    ``error`` is for people, ``error_type`` (the class's name) for programs.
    """
    return {"error": error_text(error)[:_MAX_MESSAGE], "error_type": type(error).__name__}
