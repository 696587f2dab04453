"""Finds the rollout and the attempt that a user of a command names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from agl_core.errors import AttemptNotFoundError, RolloutNotFoundError
from agl_core.types import AttemptedRollout

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import Attempt, Rollout

__all__ = ["LATEST", "find_attempt", "find_rollout"]

LATEST: Final = "latest"
_SHOWN_IDS: Final = 5
"""Ids that a message names of many."""
_LOOKED_AT: Final = 500
"""Rollouts, the newest, of which the one that began last is ``latest``: as many as may run at a
time, since they are claimed in the order of the queue."""
_BEGUN: Final = ("preparing", "running", "requeuing", "succeeded", "failed", "cancelled")


async def find_rollout(store: LightningStore, wanted: str) -> Rollout:
    """Return the rollout that a user names.

    Args:
        store: The store.
        wanted: An id, a unique part of an id, or ``latest``: the one whose latest attempt began
            last, or, if none has begun, the one enqueued last.

    Raises:
        RolloutNotFoundError: There is none, or there are several.
    """
    if wanted == LATEST:
        return await _latest(store)
    exact = await store.get_rollout_by_id(wanted)
    if exact is not None:
        return exact
    page = await store.query_rollouts(
        rollout_id_contains=wanted, sort_by="start_time", sort_order="desc", limit=_SHOWN_IDS
    )
    if not page.items:
        raise RolloutNotFoundError(f"the store has no rollout {wanted!r}")
    if page.total > 1:
        found = ", ".join(one.rollout_id for one in page.items)
        more = f" and {page.total - _SHOWN_IDS} more" if page.total > _SHOWN_IDS else ""
        raise RolloutNotFoundError(f"{wanted!r} is part of {page.total} ids: {found}{more}")
    return page.items[0]


async def _latest(store: LightningStore) -> Rollout:
    begun = await _newest(store, status_in=_BEGUN)
    attempted = [one for one in begun if isinstance(one, AttemptedRollout)]
    if attempted:
        # Several may begin at one time; the one that was enqueued last is the latest of them.
        times = [one.attempt.start_time for one in attempted]
        return attempted[len(times) - 1 - times[::-1].index(max(times))]
    waiting = await _newest(store)
    if not waiting:
        raise RolloutNotFoundError("the store has no rollout yet")
    return waiting[-1]


async def _newest(store: LightningStore, **filters: Any) -> Sequence[Rollout]:
    """Return the rollouts that were enqueued last, in that order.

    Not by time: those of one batch have the same, and a store lists them as they were enqueued.
    """
    total = (await store.query_rollouts(limit=1, **filters)).total
    offset = max(0, total - _LOOKED_AT)
    page = await store.query_rollouts(limit=2 * _LOOKED_AT, offset=offset, **filters)
    return page.items


def find_attempt(rollout: Rollout, attempts: Sequence[Attempt], wanted: str) -> Attempt:
    """Return the attempt that a user names.

    Args:
        rollout: The rollout.
        attempts: Its attempts, in order.
        wanted: A number, an id, or ``latest``.

    Raises:
        AttemptNotFoundError: There is none.
    """
    if not attempts:
        raise AttemptNotFoundError(
            f"rollout {rollout.rollout_id} has no attempt yet: it is {rollout.status}"
        )
    if wanted == LATEST:
        return attempts[-1]
    for attempt in attempts:
        if wanted in (attempt.attempt_id, str(attempt.sequence_id)):
            return attempt
    known = ", ".join(f"{one.sequence_id} ({one.attempt_id})" for one in attempts[-_SHOWN_IDS:])
    raise AttemptNotFoundError(
        f"rollout {rollout.rollout_id} has no attempt {wanted!r}; it has {known}"
    )
