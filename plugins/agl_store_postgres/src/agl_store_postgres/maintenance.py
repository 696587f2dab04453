"""Operators' changes: restore exported records unchanged, and drop old rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from pydantic import ValidationError

from agl_core.errors import InvalidArgumentError
from agl_core.semconv import PRIMARY_REWARD_VALUE
from agl_core.store import StoredSpan, encode_span
from agl_core.types import (
    QUEUING_STATUSES,
    Attempt,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
    becomes_latest,
)
from agl_store_kit import (
    Record,
    RolloutState,
    duration_of,
    has_other_reward,
    last_rewards,
    leave_out,
    settle_rewards,
)
from agl_store_kit.lifecycle import Change
from agl_store_postgres.columns import LATEST_RESOURCES
from agl_store_postgres.schema import ROLLOUTS_PER_PARTITION, partition_of
from agl_store_postgres.spans import append_spans
from agl_store_postgres.transaction import Transaction

__all__ = ["drop_rollouts", "find_old_partitions", "restore"]

_FINISHED: Final = "status IN ('succeeded', 'failed', 'cancelled')"


async def restore(tx: Transaction, records: Iterable[Record]) -> int:
    """Store records that are not there yet, unchanged.

    Returns:
        How many records were stored.

    Raises:
        InvalidArgumentError: A record is malformed, or belongs to one that does not exist.
    """
    restored = 0
    for kind, group in groupby(records, key=attrgetter("kind")):
        batch: list[bytes] = [record.json for record in group]
        try:
            if kind == "span":
                restored += await _restore_spans(tx, batch)
                continue
            for json in batch:
                restored += await _RESTORE[kind](tx, json)
                await tx.flush()
        except (ValidationError, LookupError) as error:
            raise InvalidArgumentError(
                f"this {kind} cannot be restored: {batch[0][:200]!r}"
            ) from error
    return restored


async def _is_stored(tx: Transaction, table: str, column: str, value: str) -> bool:
    (rows,) = await tx.read((f"SELECT 1 FROM {table} WHERE {column} = %s", (value,)))
    return bool(rows)


async def _restore_resources(tx: Transaction, json: bytes) -> bool:
    snapshot = ResourcesUpdate.model_validate_json(json)
    if await _is_stored(tx, "@resources", "resources_id", snapshot.resources_id):
        return False
    # Snapshots come as they were created, and an older one may have changed last.
    (rows,) = await tx.read((f"SELECT update_time FROM @resources {LATEST_RESOURCES}", ()))
    is_newer = not rows or snapshot.update_time >= rows[0][0]
    tx.save_resources(snapshot, becomes_latest=is_newer and becomes_latest(snapshot.resources))
    return True


async def _restore_worker(tx: Transaction, json: bytes) -> bool:
    worker = Worker.model_validate_json(json)
    if await _is_stored(tx, "@workers", "worker_id", worker.worker_id):
        return False
    tx.change_worker(None, worker)
    return True


async def _restore_rollout(tx: Transaction, json: bytes) -> bool:
    rollout = Rollout.model_validate_json(json)
    if await _is_stored(tx, "@rollouts", "rollout_id", rollout.rollout_id):
        return False
    await tx.insert_rollouts([rollout], queued=rollout.status in QUEUING_STATUSES)
    return True


async def _restore_attempt(tx: Transaction, json: bytes) -> bool:
    attempt = Attempt.model_validate_json(json)
    stored = await tx.state(attempt.rollout_id, attempt.attempt_id)
    if stored.state.attempt is not None:
        return False
    tx.insert_attempt(stored.ordinal, attempt)
    rollout = stored.state.rollout
    values = {"attempts": attempt.sequence_id, "duration": duration_of(attempt), "reward": None}
    tx.update_rollout(stored.ordinal, rollout, rollout, values)
    return True


async def _restore_spans(tx: Transaction, batch: Iterable[bytes]) -> int:
    spans = [encode_span(Span.model_validate_json(json)) for json in batch]
    for ids, own in settle_rewards(spans).items():
        if await _has_other_reward(tx, *ids):
            leave_out(own)
    rewards = last_rewards(spans)

    def arrived(state: RolloutState) -> Change:
        ids = (state.rollout.rollout_id, state.attempt.attempt_id if state.attempt else "")
        return Change(reward=rewards.get(ids))

    stored = await append_spans(tx, spans, arrived, look=True)
    await tx.flush()
    return len(stored)


async def _has_other_reward(tx: Transaction, rollout_id: str, attempt_id: str) -> bool:
    """Return whether an attempt has a stored reward that its agent did not write itself."""
    (found,) = await tx.read(("SELECT ordinal FROM @rollouts WHERE rollout_id = %s", (rollout_id,)))
    if not found:
        return False
    ordinal = found[0][0]
    partition = partition_of(ordinal)
    tx.partitions.add(partition)
    (rows,) = await tx.read(
        (
            (
                f"SELECT payload FROM {partition} WHERE rollout = %s AND attempt_id = %s "
                "AND position(%s::bytea IN payload) > 0"
            ),
            (ordinal, attempt_id, PRIMARY_REWARD_VALUE.encode()),
        )
    )
    return has_other_reward(StoredSpan(payload) for (payload,) in rows)


_RESTORE: Final = {
    "resources": _restore_resources,
    "worker": _restore_worker,
    "rollout": _restore_rollout,
    "attempt": _restore_attempt,
}


# -- dropping --------------------------------------------------------------------------------------


def _old(ended_before: float | None, keep_last: int | None) -> tuple[str, list[Any]]:
    """Return the condition of the rollouts to drop, and its values."""
    conditions, values = [_FINISHED], list[Any]()
    if ended_before is not None:
        conditions.append("end_time < %s")
        values.append(ended_before)
    if keep_last is not None:
        conditions.append(
            "ordinal <= coalesce((SELECT ordinal FROM @rollouts ORDER BY ordinal DESC LIMIT 1 "
            "OFFSET %s), 0)"
        )
        values.append(keep_last)
    return " AND ".join(conditions), values


def find_old_partitions(ended_before: float | None, keep_last: int | None) -> tuple[str, list[Any]]:
    """Return the statement that finds the numbers of partitions with rollouts to drop.

    Its second column tells whether the whole partition can be dropped: all of its rollouts are
    old, and later ones are in another partition.
    """
    old, values = _old(ended_before, keep_last)
    number = f"ordinal / {ROLLOUTS_PER_PARTITION}"
    statement = (
        f"SELECT number, bool_and(old) AND number < (SELECT max({number}) FROM @rollouts) "
        f"FROM (SELECT {number} AS number, coalesce({old}, false) AS old FROM @rollouts) AS r "
        "GROUP BY number HAVING bool_or(old) ORDER BY number"
    )
    return statement, values


async def drop_rollouts(
    tx: Transaction,
    number: int,
    *,
    whole: bool,
    ended_before: float | None,
    keep_last: int | None,
    limit: int,
) -> int:
    """Drop the old rollouts of a partition, oldest first; return how many.

    Args:
        tx: The transaction.
        number: The partition's number.
        whole: Drop the partition's table with all of its rollouts.
        ended_before: Keep rollouts that ended at this time or later, in epoch seconds.
        keep_last: Keep this many of the rollouts begun last, whatever their status.
        limit: How many to drop in this transaction, unless the whole partition is dropped.
    """
    first = number * ROLLOUTS_PER_PARTITION
    after = first + ROLLOUTS_PER_PARTITION
    partition = partition_of(first)
    old, values = _old(ended_before, keep_last)
    ((table,),), rows, kept = await tx.read(
        ("SELECT to_regclass(%s)::text", (tx.name_of(partition),)),
        (
            (
                "SELECT ordinal, rollout_id FROM @rollouts WHERE ordinal >= %s AND ordinal < %s "
                f"AND {old} ORDER BY ordinal LIMIT %s FOR UPDATE"
            ),
            (first, after, *values, None if whole else limit),
        ),
        (
            (
                "SELECT 1 FROM @rollouts WHERE ordinal >= %s AND ordinal < %s "
                f"AND NOT coalesce({old}, false) LIMIT 1"
            ),
            (first, after, *values),
        ),
    )
    ordinals = [row[0] for row in rows]
    if table is not None and whole and not kept:
        # Other processes' calls queue behind this lock while it waits for those under way.
        tx.write("SET LOCAL lock_timeout = '1s'")
        tx.write(f"ALTER TABLE @spans DETACH PARTITION {partition}")
        tx.write(f"DROP TABLE {partition}")
    elif table is not None:
        tx.write(f"DELETE FROM {partition} WHERE rollout = ANY(%s)", ordinals)
    tx.write("DELETE FROM @attempts WHERE rollout = ANY(%s)", ordinals)
    tx.write("DELETE FROM @sequence_ids WHERE rollout_id = ANY(%s)", [row[1] for row in rows])
    tx.write("DELETE FROM @rollouts WHERE ordinal = ANY(%s)", ordinals)
    # Results of old calls may name rollouts that do not exist any more.
    tx.forget_requests()
    return len(rows)
