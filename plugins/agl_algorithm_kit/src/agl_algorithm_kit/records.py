"""Reads what the store keeps of runs: their states, and the rollouts that they enqueued."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from agl_core.errors import InvalidArgumentError
from agl_core.store import each_item
from agl_core.types import Checkpoint, Rollout, RolloutStatus

if TYPE_CHECKING:
    from agl_core.store import LightningStore

PREFIX: Final = "run:"
"""Start of the id under which the store keeps the state of a run."""
KEY: Final = "checkpoint"
"""Name of the state in its snapshot."""

_NAME: Final = re.compile(r"[\w.-]{1,100}")
"""No name contains what separates names in an id; 100 characters leave room for the rest of it."""


def check_name(owner: str, name: str) -> None:
    """Check a name under which the store keeps records.

    Args:
        owner: Whose name it is, such as ``run``.
        name: The name.

    Raises:
        InvalidArgumentError: It has other characters, is too long, or is empty.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"a {owner}'s name is made of letters, digits, '_', '-' and '.', not {name!r}"
        )


async def checkpoints_under(
    store: LightningStore, prefix: str, key: str = KEY
) -> dict[str, Checkpoint]:
    """Return the checkpoints in snapshots whose ids begin alike, in the order of their creation.

    Args:
        store: The store.
        prefix: Start of the ids.
        key: Name of the checkpoint in its snapshot; others are left out.

    Returns:
        The checkpoints, by the rest of the id.
    """
    return {
        snapshot.resources_id.removeprefix(prefix): checkpoint
        for snapshot in await store.query_resources(resources_id_contains=prefix)
        if snapshot.resources_id.startswith(prefix)
        and isinstance(checkpoint := snapshot.resources.get(key), Checkpoint)
    }


async def stored_runs(store: LightningStore) -> dict[str, Checkpoint]:
    """Return the runs in a store by name, in the order in which they began."""
    return await checkpoints_under(store, PREFIX)


async def count_rollouts(store: LightningStore, run: str) -> Counter[RolloutStatus]:
    """Count the rollouts of a run by status; reads every rollout in the store."""
    return Counter([rollout.status async for _, rollout in rollouts_of(store, run)])


async def rollouts_of(
    store: LightningStore, run: str
) -> AsyncIterator[tuple[tuple[str, int], Rollout]]:
    """Yield the rollouts of a run, each with the name of its batch and its index there."""
    async for rollout in each_item(store.query_rollouts, "rollout_id"):
        labels = rollout.metadata or {}
        if labels.get("run") == run and "batch" in labels:
            yield (labels["batch"], labels["index"]), rollout
