"""What each call does inside its transaction: read, ask the lifecycle, write what it says.

Functions over a :class:`~agl_store_sqlite.transaction.Transaction`; the writer runs them. They
validate before they write, so that one that fails has usually written nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from agl_core import lifecycle
from agl_core.ids import new_attempt_id, new_rollout_id
from agl_core.store import EncodedSpan
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    Worker,
)
from agl_core.types._copying import attach_attempt, construct, copy_attempt, copy_worker, evolve
from agl_store_sqlite.records import joined, rollout_from
from agl_store_sqlite.tables import StoredRollout
from agl_store_sqlite.transaction import Transaction

__all__ = [
    "add_spans",
    "begin_attempt",
    "claim",
    "create_rollouts",
    "draw_sequence_ids",
    "give_back",
    "heartbeat",
    "pass_verdicts",
    "put_resources",
    "return_claim",
    "start_attempt",
    "start_rollout",
    "update_attempt",
    "update_rollout",
]

logger = logging.getLogger(__name__)


# -- creating and claiming -------------------------------------------------------------------------


def create_rollouts(
    tx: Transaction, batch: Sequence[dict[str, Any]], *, key: str | None, queued: bool
) -> list[Rollout]:
    """Create rollouts, and put them into the queue unless they are started at once."""
    if key is not None and (known := tx.remembered(key)) is not None:
        return [tx.rollout(rollout_id) for rollout_id in known]
    unnamed = any(fields["resources_id"] is None for fields in batch)
    latest = tx.latest_resources_id() if unnamed else None
    created: list[Rollout] = []
    for fields in batch:
        if fields["resources_id"] is None:
            fields = {**fields, "resources_id": latest}
        rollout = lifecycle.new_rollout(rollout_id=new_rollout_id(), now=tx.now, **fields)
        tx.insert_rollout(rollout, tx.position_at_tail() if queued else None)
        if queued:
            tx.tell("rollout", rollout_id=rollout.rollout_id, status=rollout.status)
        created.append(rollout)
    if key is not None:
        tx.remember(key, [rollout.rollout_id for rollout in created], tx.now)
    return created


def begin_attempt(
    tx: Transaction,
    rollout: Rollout,
    worker_id: str | None,
    *,
    attempts: int,
    dequeued: bool = False,
) -> AttemptedRollout:
    """Start an attempt on a rollout that had so many; see the lifecycle's."""
    change = lifecycle.begin_attempt(
        rollout,
        attempt_id=new_attempt_id(),
        sequence_id=attempts + 1,
        now=tx.now,
        worker_id=worker_id,
        worker=tx.find_worker(worker_id),
        dequeued=dequeued,
    )
    tx.apply(rollout, change)
    assert change.attempt is not None
    return joined(change.rollout or rollout, change.attempt)


def start_rollout(
    tx: Transaction, fields: dict[str, Any], worker_id: str | None, key: str | None
) -> AttemptedRollout:
    """Create a rollout and its first attempt."""
    if key is not None and (known := tx.remembered(key)) is not None:
        (rollout_id,) = known
        return attach_attempt(tx.rollout(rollout_id), tx.attempt(rollout_id, "latest"))
    (rollout,) = create_rollouts(tx, [fields], key=key, queued=False)
    return begin_attempt(tx, rollout, worker_id, attempts=0)


def start_attempt(
    tx: Transaction, rollout_id: str, worker_id: str | None, key: str | None
) -> AttemptedRollout:
    """Start an attempt outside the queue."""
    if key is not None and (known := tx.remembered(key)) is not None:
        return attach_attempt(tx.rollout(rollout_id), tx.attempt(rollout_id, known))
    stored = tx.stored_rollout(rollout_id)
    started = begin_attempt(tx, stored.rollout, worker_id, attempts=stored.attempts)
    if key is not None:
        tx.remember(key, started.attempt.attempt_id, tx.now)
    return started


def claim(
    tx: Transaction, limit: int, worker_id: str | None, *, key: str | None, note_idle: bool
) -> list[AttemptedRollout]:
    """Claim up to ``limit`` rollouts; with nothing to claim, note that the worker is idle."""
    if key is not None and (known := tx.remembered(key)) is not None:
        return [attach_attempt(tx.rollout(r), tx.attempt(r, a)) for r, a in known]
    heads = tx.queue_head(limit) if limit > 0 else []
    claimed = [
        begin_attempt(tx, head.rollout, worker_id, attempts=head.attempts, dequeued=True)
        for head in heads
    ]
    if not claimed and worker_id and note_idle:
        worker = tx.find_worker(worker_id)
        tx.put_worker(lifecycle.nothing_to_claim(worker_id, worker, now=tx.now))
    if claimed and key is not None:
        ids = [(item.rollout_id, item.attempt.attempt_id) for item in claimed]
        tx.remember(key, ids, tx.now)
    return claimed


def give_back(tx: Transaction, claimed: Sequence[AttemptedRollout]) -> None:
    """Undo claims whose caller was cancelled before it could be told of them."""
    for item in reversed(claimed):
        rollout = tx.rollout(item.rollout_id)
        latest = tx.attempt(item.rollout_id, "latest")
        if latest != item.attempt:
            continue  # somebody has already acted on it
        tx.delete_attempt(latest)
        tx.count("attempts", -1)
        status = "queuing" if latest.sequence_id == 1 else "requeuing"
        tx.save_status(
            evolve(rollout, {"status": status}),
            attempts=latest.sequence_id - 1,
            queue_position=tx.position_at_head(),
        )
        tx.count_rollout(rollout.status, status)
        tx.queue_changed = True
        worker = tx.find_worker(latest.worker_id)
        if worker is not None and worker.current_attempt_id == latest.attempt_id:
            freed = {"current_rollout_id": None, "current_attempt_id": None, "status": "idle"}
            tx.put_worker(evolve(worker, freed))
        tx.tell("rollout", rollout_id=item.rollout_id, status=status)


def return_claim(tx: Transaction, rollout_id: str, attempt_id: str) -> None:
    """Take back a claim that reached nobody; see the lifecycle's."""
    stored = tx.standing(rollout_id)
    attempt = tx.attempt(rollout_id, attempt_id)
    change = lifecycle.return_claim(
        stored.rollout,
        attempt,
        is_latest=attempt.sequence_id == stored.attempts,
        worker=tx.find_worker(attempt.worker_id),
        now=tx.now,
    )
    tx.apply(stored.rollout, change, known=attempt)


# -- updates ---------------------------------------------------------------------------------------


def update_rollout(tx: Transaction, rollout_id: str, changes: dict[str, Any]) -> Rollout:
    """Write fields of a rollout; see :func:`agl_core.lifecycle.update_rollout`."""
    rollout = tx.rollout(rollout_id)
    latest = tx.find_attempt(rollout_id, "latest")
    change = lifecycle.update_rollout(
        rollout,
        changes,
        attempt=latest,
        worker=tx.find_worker(latest.worker_id) if latest else None,
        now=tx.now,
    )
    assert change.rollout is not None
    if set(changes) - {"status"}:
        tx.save_payload(change.rollout)
    tx.apply(rollout, change)
    return change.rollout


def update_attempt(
    tx: Transaction, rollout_id: str, attempt_id: str, changes: dict[str, Any]
) -> Attempt:
    """Write fields of an attempt; see :func:`agl_core.lifecycle.update_attempt`."""
    stored = tx.standing(rollout_id)
    rollout = stored.rollout
    attempt = tx.attempt(rollout_id, attempt_id)
    change = lifecycle.update_attempt(
        rollout,
        attempt,
        changes,
        is_latest=attempt.sequence_id == stored.attempts,
        worker=tx.find_worker(changes.get("worker_id", attempt.worker_id)),
        now=tx.now,
    )
    tx.apply(rollout, change, known=attempt)
    return copy_attempt(change.attempt or attempt)


def heartbeat(tx: Transaction, worker_id: str, changes: dict[str, Any]) -> Worker:
    """Record a worker's heartbeat."""
    worker = lifecycle.worker_heartbeat(worker_id, tx.find_worker(worker_id), changes, now=tx.now)
    tx.put_worker(worker)
    return copy_worker(worker)


def pass_verdicts(tx: Transaction, debounce: float) -> int:
    """Let the watchdog look, unless some process just did; return the number of verdicts."""
    done = tx.one(
        "UPDATE counters SET value = ?1 WHERE name = 'last_scan' "
        "AND (value <= ?1 - ?2 OR value > ?1) RETURNING 1",
        tx.now,
        debounce,
    )
    if done is None:
        return 0
    rows = tx.execute(
        "SELECT r.rollout_id, r.input, r.start_time, r.end_time, r.mode, r.resources_id, r.status, "
        "r.config, r.metadata FROM rollouts r WHERE r.watched = 1 ORDER BY r.ordinal"
    ).fetchall()
    verdicts = 0
    for rollout in map(rollout_from, rows):
        attempt = tx.find_attempt(rollout.rollout_id, "latest")
        if attempt is None:
            logger.warning("Rollout %s runs without an attempt; not watched", rollout.rollout_id)
            continue
        status = lifecycle.verdict(rollout, attempt, now=tx.now)
        if status is not None:
            update_attempt(tx, rollout.rollout_id, attempt.attempt_id, {"status": status})
            verdicts += 1
    return verdicts


# -- resources and spans ---------------------------------------------------------------------------


def put_resources(
    tx: Transaction, resources_id: str, resources: NamedResources, key: str | None
) -> ResourcesUpdate:
    """Add or replace a snapshot; it becomes the latest."""
    if key is not None and (known_id := tx.remembered(key)) is not None:
        remembered = tx.find_resources(known_id)
        assert remembered is not None
        return remembered
    known = tx.find_resources(resources_id)
    update = construct(
        ResourcesUpdate,
        {
            "resources_id": resources_id,
            "create_time": known.create_time if known else tx.now,
            "update_time": tx.now,
            "version": known.version + 1 if known else 1,
            "resources": resources,
        },
    )
    tx.save_resources(update)
    tx.tell("resources", resources_id=resources_id)
    if key is not None:
        tx.remember(key, resources_id, tx.now)
    return update


def add_spans(tx: Transaction, spans: Sequence[EncodedSpan]) -> list[EncodedSpan]:
    """Store spans; return those that were not stored before."""
    placed: list[tuple[int, EncodedSpan]] = []
    attempts: dict[tuple[str, str], Attempt] = {}
    for span in spans:
        placed.append((tx.standing(span.rollout_id).ordinal, span))
        ids = span.rollout_id, span.attempt_id
        if ids not in attempts:
            attempts[ids] = tx.attempt(*ids)

    stored = tx.insert_spans(placed)
    if len(stored) < len(spans):
        _log_duplicates(spans, stored)
    if stored:
        tx.count("spans", len(stored))
        tx.count("span_bytes", sum(len(span.payload) for span in stored))
    for ids in dict.fromkeys((span.rollout_id, span.attempt_id) for span in stored):
        # As it stands now: the attempt before may have been of the same rollout.
        _heard_from(tx, tx.standing(ids[0]), attempts[ids])
    return stored


def _log_duplicates(spans: Sequence[EncodedSpan], stored: Sequence[EncodedSpan]) -> None:
    new = {id(span) for span in stored}
    for span in spans:
        if id(span) not in new:
            logger.error(
                "Span %s of rollout %s attempt %s is already stored; skipped",
                span.span_id,
                span.rollout_id,
                span.attempt_id,
            )


def _heard_from(tx: Transaction, stored: StoredRollout, attempt: Attempt) -> None:
    # The worker matters only to an attempt that comes back to life.
    revived = attempt.status == "unresponsive"
    change = lifecycle.span_arrived(
        stored.rollout,
        attempt,
        is_latest=attempt.sequence_id == stored.attempts,
        worker=tx.find_worker(attempt.worker_id) if revived else None,
        now=tx.now,
    )
    tx.apply(stored.rollout, change, known=attempt)


def draw_sequence_ids(tx: Transaction, rollout_ids: Sequence[str]) -> list[int]:
    """Draw a sequence id for each rollout, in order."""
    wanted: dict[str, int] = {}
    for rollout_id in rollout_ids:
        wanted[rollout_id] = wanted.get(rollout_id, 0) + 1
    following = {
        rollout_id: tx.draw_sequence_ids(rollout_id, number) - number + 1
        for rollout_id, number in wanted.items()
    }
    drawn: list[int] = []
    for rollout_id in rollout_ids:
        drawn.append(following[rollout_id])
        following[rollout_id] += 1
    return drawn
