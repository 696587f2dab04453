"""Finds the rollout and the attempt that a user of a command names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from agl_core.errors import AttemptNotFoundError, RolloutNotFoundError

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import Attempt, Rollout

__all__ = ["LATEST", "find_attempt", "find_rollout"]

LATEST: Final = "latest"
_SHOWN_IDS: Final = 5


async def find_rollout(store: LightningStore, wanted: str) -> Rollout:
    """Return the rollout that a user names.

    Args:
        store: The store.
        wanted: An id, a unique part of an id, or ``latest``.

    Raises:
        RolloutNotFoundError: There is none, or there are several.
    """
    if wanted == LATEST:
        page = await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=1)
        if not page.items:
            raise RolloutNotFoundError("the store has no rollout yet")
        return page.items[0]
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
