"""New rollouts: into the queue, or begun at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agl_core.types import Rollout, evolve
from agl_store_kit import Decide, RolloutRecord, RolloutState, rollout_notice
from agl_store_kit.lifecycle import Change
from agl_store_kit.rows import ROLLOUT_FIELDS, columns, worker_from
from agl_store_postgres.columns import LATEST_RESOURCES
from agl_store_postgres.transaction import (
    StoredState,
    Transaction,
    find_worker,
    lock,
    rollout_values,
)

__all__ = ["insert_queued", "insert_started"]

_LATEST: Final = f"SELECT resources_id FROM @resources {LATEST_RESOURCES}"
_FIELDS: Final = f"{columns(ROLLOUT_FIELDS)}, watched"
_VALUES: Final = ", ".join(["%s"] * (len(ROLLOUT_FIELDS) + 1))
_NOTHING: Final = Change()


async def insert_queued(tx: Transaction, rollouts: Sequence[Rollout]) -> list[RolloutRecord]:
    """Add rollouts at the tail of the queue."""
    rollouts = await _with_resources(tx, rollouts)
    if len(rollouts) == 1:
        tx.write(
            f"INSERT INTO @rollouts ({_FIELDS}, queue_position) "
            f"VALUES ({_VALUES}, nextval('@queue_tail'))",
            *rollout_values(rollouts[0]),
        )
        tx.notices.append(rollout_notice(rollouts[0], tx.now))
    else:
        await tx.insert_rollouts(rollouts, queued=True)
    return [(rollout, None) for rollout in rollouts]


async def insert_started(
    tx: Transaction, rollouts: Sequence[Rollout], begin: Decide, worker_id: str | None
) -> list[RolloutRecord]:
    """Add rollouts with their first attempts, outside of the queue."""
    rollouts = await _with_resources(tx, rollouts)
    ordinals = await tx.insert_rollouts(rollouts, queued=False)
    worker = None
    if worker_id:
        _, rows = await tx.read(lock(worker_id), find_worker(worker_id))
        worker = worker_from(rows[0]) if rows else None
    records: list[RolloutRecord] = []
    for ordinal, rollout in zip(ordinals, rollouts, strict=True):
        state = RolloutState(rollout, 0, None, worker)
        change = begin(state) or _NOTHING
        records.append(tx.apply(StoredState(ordinal, state), change))
        worker = change.worker or worker
    return records


async def _with_resources(tx: Transaction, rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
    """Return rollouts with the latest snapshot in place of none."""
    (rows,) = await tx.read((_LATEST, ()))
    if not rows:
        return rollouts
    latest = {"resources_id": rows[0][0]}
    return [
        evolve(rollout, latest) if rollout.resources_id is None else rollout for rollout in rollouts
    ]
