"""Cancels rollouts without a change to those that end meanwhile."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from agl_core.errors import StoreUnavailableError
from agl_core.types import AttemptedRollout, Rollout

if TYPE_CHECKING:
    from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

_TIMEOUT: Final = 10.0
"""Seconds: a run that is stopped must not wait long for a store that is away."""


async def cancel_rollouts(store: LightningStore, rollout_ids: Iterable[str]) -> list[Rollout]:
    """Cancel those of these rollouts that are not finished; works in a cancelled task too.

    The last ones come first, because runners claim the first ones. A rollout that succeeds
    meanwhile stays ``succeeded``.

    Args:
        store: The store of the rollouts.
        rollout_ids: Ids of the rollouts, in the order in which they were enqueued.

    Returns:
        The rollouts after the cancellation, without those that the store gave no answer for
        within 10 seconds. Runners may still run those; a warning says how many they are.
    """
    waiting = list(dict.fromkeys(rollout_ids))
    ended: dict[str, Rollout] = {}
    if not waiting:
        return []
    with anyio.CancelScope(shield=True), anyio.move_on_after(_TIMEOUT):
        done = await store.wait_for_rollouts(rollout_ids=waiting, timeout=0)
        ended.update((rollout.rollout_id, rollout) for rollout in done)
        rest = [name for name in reversed(waiting) if name not in ended]
        for name in rest:
            ended[name] = await store.update_rollout(name, status="cancelled")
        for name in await _succeeded_before(store, rest):
            ended[name] = await store.update_rollout(name, status="succeeded")
    if left := len(waiting) - len(ended):
        logger.warning("%d rollouts could not be cancelled within %g seconds", left, _TIMEOUT)
    return [ended[name] for name in waiting if name in ended]


async def cancel_all_rollouts(store: LightningStore, rollout_ids: Iterable[str]) -> list[Rollout]:
    """Call :func:`cancel_rollouts` until the store has answered for every rollout.

    Raises:
        StoreUnavailableError: It answered for none within 10 seconds.
    """
    left = list(rollout_ids)
    ended: dict[str, Rollout] = {}
    while left:
        found = await cancel_rollouts(store, left)
        if not found:
            raise StoreUnavailableError(
                f"the store does not answer, so {len(left)} rollouts are still open"
            )
        ended.update((rollout.rollout_id, rollout) for rollout in found)
        left = [name for name in left if name not in ended]
    return list(ended.values())


async def _succeeded_before(store: LightningStore, rollout_ids: Sequence[str]) -> list[str]:
    """Return those of these cancelled rollouts that had succeeded when they were cancelled.

    No call of a store changes a status only if it is not final.
    """
    if not rollout_ids:
        return []
    return [
        rollout.rollout_id
        for rollout in await store.query_rollouts(rollout_id_in=rollout_ids)
        if rollout.status == "cancelled"
        and isinstance(rollout, AttemptedRollout)
        and rollout.attempt.status == "succeeded"
        and (rollout.attempt.end_time or math.inf) <= (rollout.end_time or 0.0)
    ]
