"""Reads what the store keeps of runs: their states, and the rollouts that they enqueued."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from agl_core.types import Checkpoint, Rollout, RolloutStatus

if TYPE_CHECKING:
    from agl_core.store import LightningStore

PREFIX: Final = "run:"
"""Start of the id under which the store keeps the state of a run."""
KEY: Final = "checkpoint"
"""Name of the state in its snapshot."""
PAGE: Final = 1000
"""Rollouts of one query; the server's answer to it stays below a few megabytes."""


async def stored_runs(store: LightningStore) -> dict[str, Checkpoint]:
    """Return the runs in a store by name, in the order in which they began."""
    page = await store.query_resources(resources_id_contains=PREFIX)
    return {
        snapshot.resources_id.removeprefix(PREFIX): checkpoint
        for snapshot in page
        if snapshot.resources_id.startswith(PREFIX)
        and isinstance(checkpoint := snapshot.resources.get(KEY), Checkpoint)
    }


async def count_rollouts(store: LightningStore, run: str) -> Counter[RolloutStatus]:
    """Count the rollouts of a run by status; reads every rollout in the store."""
    return Counter([rollout.status async for _, rollout in rollouts_of(store, run)])


async def rollouts_of(
    store: LightningStore, run: str
) -> AsyncIterator[tuple[tuple[str, int], Rollout]]:
    """Yield the rollouts of a run, each with the name of its batch and its index there."""
    offset, total = 0, 1
    while offset < total:
        page = await store.query_rollouts(limit=PAGE, offset=offset)
        for rollout in page:
            labels = rollout.metadata or {}
            if labels.get("run") == run and "batch" in labels:
                yield (labels["batch"], labels["index"]), rollout
        offset, total = offset + PAGE, page.total
