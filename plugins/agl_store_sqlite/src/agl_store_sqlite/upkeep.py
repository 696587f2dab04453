"""What an operator does to a file: take records in as they were, and drop what is old."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pydantic import ValidationError

from agl_core.errors import InvalidArgumentError
from agl_core.store.encoded import encode_span
from agl_core.store.transfer import Record
from agl_core.types import Attempt, ResourcesUpdate, Rollout, Span, Worker
from agl_core.types._rollout import QUEUING_STATUSES
from agl_store_sqlite.transaction import Transaction

__all__ = ["forget_rollouts", "restore"]

_FINISHED: Final = "('succeeded', 'failed', 'cancelled')"


def restore(tx: Transaction, records: Iterable[Record]) -> int:
    """Store records that are not there yet, as they were; return how many.

    Raises:
        InvalidArgumentError: A record is malformed, or belongs to one that is missing.
    """
    taken = 0
    for record in records:
        try:
            taken += _TAKE[record.kind](tx, record.json)
        except (ValidationError, LookupError) as error:
            raise InvalidArgumentError(
                f"this {record.kind} cannot be taken in: {record.json[:200]!r}"
            ) from error
    return taken


def _take_resources(tx: Transaction, json: bytes) -> bool:
    snapshot = ResourcesUpdate.model_validate_json(json)
    if tx.find_resources(snapshot.resources_id) is not None:
        return False
    tx.save_resources(snapshot)
    tx.tell("resources", resources_id=snapshot.resources_id)
    return True


def _take_worker(tx: Transaction, json: bytes) -> bool:
    worker = Worker.model_validate_json(json)
    if tx.find_worker(worker.worker_id) is not None:
        return False
    tx.put_worker(worker)
    return True


def _take_rollout(tx: Transaction, json: bytes) -> bool:
    rollout = Rollout.model_validate_json(json)
    if tx.find_rollout(rollout.rollout_id) is not None:
        return False
    queued = rollout.status in QUEUING_STATUSES
    tx.insert_rollout(rollout, tx.position_at_tail() if queued else None)
    tx.tell("rollout", rollout_id=rollout.rollout_id, status=rollout.status)
    return True


def _take_attempt(tx: Transaction, json: bytes) -> bool:
    attempt = Attempt.model_validate_json(json)
    rollout = tx.rollout(attempt.rollout_id)
    if tx.find_attempt(attempt.rollout_id, attempt.attempt_id) is not None:
        return False
    tx.insert_attempt(attempt)
    tx.save_status(rollout, attempts=attempt.sequence_id)
    tx.count("attempts", 1)
    return True


def _take_span(tx: Transaction, json: bytes) -> bool:
    span = encode_span(Span.model_validate_json(json))
    tx.attempt(span.rollout_id, span.attempt_id)
    ordinal = tx.standing(span.rollout_id).ordinal
    if not tx.insert_spans([(ordinal, span)]):
        return False
    tx.count("spans", 1)
    tx.count("span_bytes", len(span.payload))
    return True


_TAKE: Final = {
    "resources": _take_resources,
    "worker": _take_worker,
    "rollout": _take_rollout,
    "attempt": _take_attempt,
    "span": _take_span,
}


def forget_rollouts(
    tx: Transaction, *, ended_before: float | None, keep_last: int | None, at_most: int
) -> int:
    """Drop finished rollouts, oldest first, with their attempts and spans; return how many.

    Args:
        tx: The transaction.
        ended_before: Keep what ended at this time or later, in epoch seconds.
        keep_last: Keep so many of the rollouts begun last, whatever their status.
        at_most: How many to drop in this transaction.
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
    doomed = tx.execute(
        "SELECT ordinal, rollout_id, status, attempts FROM rollouts "
        f"WHERE {' AND '.join(conditions)} ORDER BY ordinal LIMIT ?",
        (*values, at_most),
    ).fetchall()
    for ordinal, rollout_id, status, attempts in doomed:
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
    if doomed:
        tx.known.clear()
        # Their answers name rollouts that are gone; no client repeats a call for as long.
        tx.execute("DELETE FROM requests WHERE time < ?", (tx.now - 3600.0,))
    return len(doomed)
