"""Operators' changes of a file: restore exported records unchanged, and drop old rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Final

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
    Notice,
    Record,
    RolloutState,
    duration_of,
    has_other_reward,
    last_rewards,
    leave_out,
    settle_rewards,
)
from agl_store_kit.lifecycle import Change
from agl_store_sqlite.queries import get_resources
from agl_store_sqlite.spans import append_spans
from agl_store_sqlite.transaction import Transaction

__all__ = ["drop_rollouts", "restore"]

_FINISHED: Final = "('succeeded', 'failed', 'cancelled')"


def restore(tx: Transaction, records: Iterable[Record]) -> int:
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
                restored += _restore_spans(tx, batch)
            else:
                restored += sum(_RESTORE[kind](tx, json) for json in batch)
        except (ValidationError, LookupError) as error:
            raise InvalidArgumentError(
                f"this {kind} cannot be restored: {batch[0][:200]!r}"
            ) from error
    return restored


def _restore_resources(tx: Transaction, json: bytes) -> bool:
    snapshot = ResourcesUpdate.model_validate_json(json)
    if get_resources(tx.connection, snapshot.resources_id) is not None:
        return False
    # Snapshots come as they were created, and an older one may have changed last.
    latest = get_resources(tx.connection, None)
    is_newer = latest is None or snapshot.update_time >= latest.update_time
    tx.save_resources(snapshot, becomes_latest=is_newer and becomes_latest(snapshot.resources))
    return True


def _restore_worker(tx: Transaction, json: bytes) -> bool:
    worker = Worker.model_validate_json(json)
    if tx.find_worker(worker.worker_id) is not None:
        return False
    tx.change_worker(None, worker)
    return True


def _restore_rollout(tx: Transaction, json: bytes) -> bool:
    rollout = Rollout.model_validate_json(json)
    if tx.insert_rollout(rollout, queued=rollout.status in QUEUING_STATUSES) is None:
        return False
    tx.notices.append(Notice("rollout", tx.now, rollout.rollout_id, status=rollout.status))
    return True


def _restore_attempt(tx: Transaction, json: bytes) -> bool:
    attempt = Attempt.model_validate_json(json)
    stored = tx.state(attempt.rollout_id, attempt.attempt_id)
    if stored.state.attempt is not None:
        return False
    tx.insert_attempt(stored.ordinal, attempt)
    rollout = stored.state.rollout
    columns = {"attempts": attempt.sequence_id, "duration": duration_of(attempt), "reward": None}
    tx.update_rollout(stored.ordinal, rollout, rollout, columns)
    return True


def _restore_spans(tx: Transaction, batch: Iterable[bytes]) -> int:
    spans = [encode_span(Span.model_validate_json(json)) for json in batch]
    for ids, own in settle_rewards(spans).items():
        if _has_other_reward(tx, *ids):
            leave_out(own)
    rewards = last_rewards(spans)

    def arrived(state: RolloutState) -> Change:
        ids = (state.rollout.rollout_id, state.attempt.attempt_id if state.attempt else "")
        return Change(reward=rewards.get(ids))

    return len(append_spans(tx, spans, arrived))


def _has_other_reward(tx: Transaction, rollout_id: str, attempt_id: str) -> bool:
    """Return whether an attempt has a stored reward that its agent did not write itself."""
    rows = tx.execute(
        "SELECT payload FROM spans WHERE attempt_id = ? AND instr(payload, ?) AND rollout = "
        "(SELECT ordinal FROM rollouts WHERE rollout_id = ?)",
        (attempt_id, PRIMARY_REWARD_VALUE.encode(), rollout_id),
    )
    return has_other_reward(StoredSpan(payload) for (payload,) in rows)


_RESTORE: Final = {
    "resources": _restore_resources,
    "worker": _restore_worker,
    "rollout": _restore_rollout,
    "attempt": _restore_attempt,
}


def drop_rollouts(
    tx: Transaction, *, ended_before: float | None, keep_last: int | None, limit: int
) -> int:
    """Drop finished rollouts, oldest first, with their attempts and spans; return how many.

    Args:
        tx: The transaction.
        ended_before: Keep rollouts that ended at this time or later, in epoch seconds.
        keep_last: Keep this many of the rollouts begun last, whatever their status.
        limit: How many to drop in this transaction.
    """
    conditions, values = [f"status IN {_FINISHED}"], []
    if ended_before is not None:
        conditions.append("end_time < ?")
        values.append(ended_before)
    if keep_last is not None:
        conditions.append(
            "ordinal <= (SELECT coalesce((SELECT ordinal FROM rollouts ORDER BY ordinal DESC "
            "LIMIT 1 OFFSET ?), 0))"
        )
        values.append(keep_last)
    dropped = tx.execute(
        "SELECT ordinal, rollout_id, status, attempts FROM rollouts "
        f"WHERE {' AND '.join(conditions)} ORDER BY ordinal LIMIT ?",
        (*values, limit),
    ).fetchall()
    for ordinal, rollout_id, status, attempts in dropped:
        (spans, size) = tx.one(
            "SELECT count(*), coalesce(sum(length(payload)), 0) FROM spans WHERE rollout = ?",
            ordinal,
        )
        tx.execute("DELETE FROM spans WHERE rollout = ?", (ordinal,))
        tx.execute("DELETE FROM attempts WHERE rollout = ?", (ordinal,))
        tx.execute("DELETE FROM sequence_ids WHERE rollout_id = ?", (rollout_id,))
        tx.execute("DELETE FROM rollouts WHERE ordinal = ?", (ordinal,))
        tx.count_rollout(status, None)
        tx.count("attempts", -attempts)
        tx.count("spans", -spans)
        tx.count("span_bytes", -size)
    if dropped:
        # Results of old calls may name rollouts that do not exist any more.
        tx.forget_requests()
    return len(dropped)
