"""Claims: the head of the queue, the rollouts of lowest queue position."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from agl_core.errors import StoreDataError
from agl_core.types import Attempt, Rollout, Worker, evolve
from agl_store_kit import ClaimRequest, Notice, RolloutState, lifecycle, standing_claims
from agl_store_kit.rows import ROLLOUT_FIELDS, columns, rollout_from, worker_from
from agl_store_postgres.transaction import (
    StoredState,
    Transaction,
    find_worker,
    lock,
)

__all__ = ["claim_heads", "give_back"]

logger = logging.getLogger(__name__)

_HEADS: Final = (
    f"SELECT r.ordinal, r.attempts, {columns(ROLLOUT_FIELDS, 'r.')} FROM @rollouts r "
    "WHERE queue_position IS NOT NULL ORDER BY queue_position LIMIT %s FOR UPDATE"
)
_QUEUED: Final = "SELECT 1 FROM @rollouts WHERE queue_position IS NOT NULL LIMIT 1"


async def claim_heads(
    tx: Transaction, request: ClaimRequest, *, wait: bool
) -> list[tuple[Rollout, Attempt]] | None:
    """Claim rollouts; see :meth:`agl_store_kit.StorageBackend.claim`.

    Args:
        tx: The transaction.
        request: The claim.
        wait: Wait for a row that another transaction has locked, and claim no other.

    Returns:
        The claimed rollouts. None if all that is queued is locked, and ``wait`` is False.
    """
    known = await tx.remembered(request.key) or ()
    if standing := standing_claims([(await tx.state(*ids)).state for ids in known]):
        return standing
    found = await _heads(tx, request, wait=wait)
    if found is None:
        return None
    heads, worker = found
    claimed: list[tuple[Rollout, Attempt]] = []
    for place, (ordinal, attempts, rollout) in enumerate(heads):
        state = RolloutState(rollout, attempts, None, worker)
        change = request.begin(state, place)
        tx.apply(StoredState(ordinal, state), change)
        assert change.attempt is not None
        claimed.append((change.rollout or rollout, change.attempt))
        worker = change.worker or worker
    if claimed:
        ids = [(rollout.rollout_id, attempt.attempt_id) for rollout, attempt in claimed]
        tx.remember(request.key, ids)
    elif request.idle is not None:
        # Not synced: after a crash of the server the worker asks for work again.
        tx.write("SET LOCAL synchronous_commit = off")
        tx.change_worker(worker, request.idle(worker))
    return claimed


async def _heads(
    tx: Transaction, request: ClaimRequest, *, wait: bool
) -> tuple[list[tuple[int, int, Rollout]], Worker | None] | None:
    """Lock the head of the queue and the worker.

    Returns:
        The ordinals, the numbers of attempts and the rollouts at the head, and the worker. None as
        in :func:`claim_heads`.
    """
    worker_id = request.worker_id
    worker_reads = (lock(worker_id), find_worker(worker_id)) if worker_id else ()
    while True:
        if wait:
            # Rows are locked before the worker. Here that takes a round trip more.
            (rows,) = await tx.read((_HEADS, (min(request.limit, 1),)))
            workers = await tx.read(*worker_reads)
        else:
            # Rows that others claim right now are skipped: claims do not wait for each other.
            rows, queued, *workers = await tx.read(
                (f"{_HEADS} SKIP LOCKED", (max(request.limit, 0),)), (_QUEUED, ()), *worker_reads
            )
            if queued and not rows and request.limit > 0:
                return None
        heads: list[tuple[int, int, Rollout]] = []
        for ordinal, attempts, *row in rows:
            try:
                heads.append((ordinal, attempts, rollout_from(row)))
            except StoreDataError as error:
                _set_aside(tx, ordinal, row[0], error)
        if len(heads) == len(rows):
            return heads, worker_from(workers[-1][0]) if workers and workers[-1] else None
        await tx.flush()


def _set_aside(tx: Transaction, ordinal: int, rollout_id: str, error: StoreDataError) -> None:
    """Fail a rollout whose row cannot be read; at the head it would stop the whole queue."""
    logger.error("Rollout %s leaves the queue: %s", rollout_id, error)
    tx.write(
        "UPDATE @rollouts SET status = 'failed', end_time = extract(epoch FROM clock_timestamp()), "
        "queue_position = NULL, watched = false WHERE ordinal = %s",
        ordinal,
    )
    tx.notices.append(Notice("rollout", tx.now, rollout_id, status="failed"))


async def give_back(tx: Transaction, claimed: Sequence[tuple[Rollout, Attempt]]) -> None:
    """Undo claims whose caller was cancelled before it got them."""
    for rollout, attempt in reversed(claimed):
        stored = await tx.state(rollout.rollout_id)
        current, _, latest, worker = stored.state
        if latest != attempt or current.status != "preparing":
            continue  # somebody has acted on it
        tx.write(
            "DELETE FROM @attempts WHERE rollout = %s AND sequence_id = %s",
            *(stored.ordinal, attempt.sequence_id),
        )
        status = lifecycle.status_before_claim(attempt)
        back = evolve(current, {"status": status})
        attempts = {"attempts": attempt.sequence_id - 1}
        tx.update_rollout(stored.ordinal, current, back, attempts)
        tx.write(_TO_HEAD, stored.ordinal)
        tx.notices.append(Notice("rollout", tx.now, rollout.rollout_id, status=status))
        if worker is not None and worker.current_attempt_id == attempt.attempt_id:
            free = {"status": "idle", "current_rollout_id": None, "current_attempt_id": None}
            tx.change_worker(worker, evolve(worker, free))
        await tx.flush()


_TO_HEAD: Final = (
    "UPDATE @rollouts SET queue_position = (SELECT coalesce(min(queue_position), 0) - 1 "
    "FROM @rollouts WHERE queue_position IS NOT NULL) WHERE ordinal = %s"
)
