"""The rules of rollouts, attempts, workers, the queue and the watchdog.

Every function is pure: it takes records, the time and ids as arguments, and returns the changed
records. A store persists them atomically. Records passed in are never mutated.

::

                 enqueue                    claim                     span
      rollout:  ────────▶  queuing  ─────────────────▶  preparing  ────────▶  running
                             ▲ requeuing ─────┘             │                    │
                             │    ▲                         │   status of the latest attempt
                             │    └── retry allowed ────────┴────────────────────┤
                             │                                                   ▼
                             └── update_rollout ◀── any ──▶ succeeded · failed · cancelled

      attempt:  preparing ──span──▶ running ──▶ succeeded | failed      (written by the runner)
                                    │   ▲
                                    ▼   └─span (revival)
                                unresponsive | timeout                  (the watchdog's verdicts)

Invariants:

* A rollout is in the queue exactly while it is ``queuing`` or ``requeuing``; it enters at the tail.
* A finished rollout changes only by an explicit :func:`update_rollout` or :func:`begin_attempt`, or
  by a status written to its latest attempt while it is not ``cancelled``.
* A failure never brings a finished rollout back into the queue: its result was collected.
* Only the latest attempt moves its rollout.
* An attempt moves a worker only while the worker is on that attempt, or is free and is named.
* No worker is put on an attempt while its rollout is in the queue: whoever claims the rollout
  begins another attempt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from agl_core.status import (
    INFRASTRUCTURE,
    INFRASTRUCTURE_FAILURES,
    RUNNING_ATTEMPTS,
    failed_by,
    infrastructure_failures,
    is_on,
)
from agl_core.types import (
    FINISHED_STATUSES,
    QUEUING_STATUSES,
    RUNNING_STATUSES,
    Attempt,
    AttemptStatus,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Worker,
    WorkerStatus,
    construct,
    evolve,
)

__all__ = [
    "ENDED_STATUSES",
    "Change",
    "QueueAction",
    "begin_attempt",
    "ended_at",
    "is_returned_claim",
    "is_watched",
    "new_rollout",
    "nothing_to_claim",
    "released_from",
    "return_claim",
    "rollout_status_after",
    "span_arrived",
    "status_before_claim",
    "update_attempt",
    "update_rollout",
    "verdict",
    "worker_heartbeat",
]

QueueAction = Literal["append", "remove"]

ENDED_STATUSES: Final = frozenset({"failed", "succeeded", "timeout", "unresponsive"})
"""Attempt statuses that set an end time; a span revives an attempt only from ``unresponsive``."""
_UNASSIGNING_STATUSES: Final = frozenset({"cancelled", *QUEUING_STATUSES})
"""Rollout statuses that end the work of whoever runs its attempt."""
_DELIVERY: Final = "delivery"
"""What failed in an attempt whose claim did not reach its worker."""


class Change(NamedTuple):
    """The changes of one call; None means that the stored value stays."""

    rollout: Rollout | None = None
    attempt: Attempt | None = None
    worker: Worker | None = None
    queue: QueueAction | None = None
    """Append the rollout at the tail of the queue, or remove it wherever it is."""
    reward: float | None = None
    """A reward that arrived for the attempt."""


# -- creating and claiming -----------------------------------------------------------------------


def new_rollout(
    *,
    rollout_id: str,
    input: Any,
    mode: RolloutMode | None,
    resources_id: str | None,
    config: RolloutConfig,
    metadata: dict[str, Any],
    now: float,
) -> Rollout:
    """Return a ``queuing`` rollout; the caller must append it to the queue."""
    return construct(
        Rollout,
        {
            "rollout_id": rollout_id,
            "input": input,
            "start_time": now,
            "end_time": None,
            "mode": mode,
            "resources_id": resources_id,
            "status": "queuing",
            "config": config,
            "metadata": metadata,
        },
    )


def begin_attempt(
    rollout: Rollout,
    *,
    attempt_id: str,
    sequence_id: int,
    now: float,
    worker_id: str | None = None,
    worker: Worker | None = None,
    dequeued: bool = False,
) -> Change:
    """Start an attempt on a rollout of any status: a claim, a direct start, or a manual retry.

    Args:
        rollout: The stored rollout.
        attempt_id: Id of the attempt.
        sequence_id: Number of the rollout's attempts, this one included.
        now: The time, in epoch seconds.
        worker_id: Worker that runs the attempt; it becomes ``busy`` regardless of its status.
        worker: Record of that worker; None if there is none yet.
        dequeued: Whether the attempt is a claim from the queue.
    """
    attempt = construct(
        Attempt,
        {
            "rollout_id": rollout.rollout_id,
            "attempt_id": attempt_id,
            "sequence_id": sequence_id,
            "start_time": now,
            "end_time": None,
            "status": "preparing",
            "worker_id": worker_id,
            "last_heartbeat_time": None,
            "metadata": None,
        },
    )
    changed, queue = _with_status(rollout, "preparing", now)
    assigned = None
    if worker_id:
        assigned = _put_on(worker or Worker(worker_id=worker_id), attempt, now)
        if dequeued:
            assigned = evolve(assigned, {"last_dequeue_time": now})
    return Change(changed, attempt, assigned, queue)


def nothing_to_claim(worker_id: str, worker: Worker | None, *, now: float) -> Worker:
    """Return the worker after a dequeue that found the queue empty: ``idle``.

    A worker with several attempts at a time asks for more while it runs some: it stays ``busy``
    while its heartbeats list the attempt that its record names.
    """
    if worker is not None and (worker.status == "idle" or _says_it_runs(worker)):
        return evolve(worker, {"last_dequeue_time": now})
    worker = worker or Worker(worker_id=worker_id)
    return evolve(_released(worker, "idle", now), {"last_dequeue_time": now})


def released_from(attempt: Attempt, worker: Worker | None, *, now: float) -> Worker | None:
    """Return the worker whose attempt went on elsewhere: by another attempt, or another worker.

    Its runner detects this with its next heartbeat.

    Returns:
        The worker, ``unknown`` and free; None if it is not on the attempt.
    """
    return _released(worker, "unknown", now) if worker and is_on(worker, attempt) else None


# -- what happens to an attempt ------------------------------------------------------------------


def span_arrived(
    rollout: Rollout, attempt: Attempt, *, is_latest: bool, worker: Worker | None, now: float
) -> Change:
    """Record a span of an attempt as its heartbeat.

    The first span makes the attempt ``running``; a span after an ``unresponsive`` verdict revives
    it. A ``preparing`` rollout becomes ``running`` with its latest attempt. A ``requeuing`` one
    leaves the queue only if its attempt was revived: a late span of an ended attempt must not
    cancel the retry.

    Args:
        rollout: The rollout.
        attempt: The attempt that the span belongs to.
        is_latest: Whether the attempt is the rollout's latest.
        worker: Record of the attempt's worker, if any. A revived attempt is assigned to it again,
            unless the worker has another attempt, or the rollout stays in the queue.
        now: The time, in epoch seconds.
    """
    # The fast path: most spans change only the heartbeat.
    if attempt.status == "running" and not (is_latest and rollout.status == "preparing"):
        return Change(attempt=evolve(attempt, {"last_heartbeat_time": now}))
    revived = attempt.status == "unresponsive"
    if revived or attempt.status == "preparing":
        changes = {"status": "running", "end_time": None, "last_heartbeat_time": now}
        attempt = evolve(attempt, changes)
    else:
        attempt = evolve(attempt, {"last_heartbeat_time": now})

    changed, queue = None, None
    follows = rollout.status == "preparing" or (rollout.status == "requeuing" and revived)
    if is_latest and follows and attempt.status == "running":
        changed, queue = _with_status(rollout, "running", now)
    regained = None
    can_regain = revived and not _is_queued(changed or rollout)
    if can_regain and worker is not None and worker.status == "unknown" and _is_free(worker):
        regained = _put_on(worker, attempt, now)
    return Change(changed, attempt, regained, queue)


def update_attempt(
    rollout: Rollout,
    attempt: Attempt,
    changes: Mapping[str, Any],
    *,
    is_latest: bool,
    worker: Worker | None,
    now: float,
) -> Change:
    """Write fields of an attempt, for a caller or as the watchdog's verdict.

    Args:
        rollout: The rollout.
        attempt: The attempt to change.
        changes: Valid values of any of status, worker_id, last_heartbeat_time and metadata.
        is_latest: Whether the attempt is the rollout's latest; only then its status moves the
            rollout.
        worker: Record of the worker that the attempt has **after** the change, if there is one.
        now: The time, in epoch seconds.
    """
    status: AttemptStatus | None = changes.get("status")
    fields = dict(changes)
    if status not in ENDED_STATUSES:
        fields |= {} if status is None else {"end_time": None}
    elif status != attempt.status or attempt.end_time is None:  # repeated, it ends no second time
        fields["end_time"] = now
    attempt = evolve(attempt, fields)

    changed, queue = None, None
    if status is not None and is_latest and rollout.status != "cancelled":
        target = rollout_status_after(attempt, rollout.config)
        if target == "requeuing" and rollout.status in FINISHED_STATUSES:
            target = "failed"  # somebody has collected the result: nobody waits for a retry
        if target != rollout.status:
            changed, queue = _with_status(rollout, target, now)

    moved = None
    if attempt.worker_id and (status is not None or "worker_id" in changes):
        named = "worker_id" in changes and (worker is None or _is_free(worker))
        ended = attempt.status in ENDED_STATUSES
        takes = rollout.status != "cancelled" and (ended or not _is_queued(changed or rollout))
        if (worker is not None and is_on(worker, attempt)) or (named and takes):
            moved = _follow(worker or Worker(worker_id=attempt.worker_id), attempt, status, now)
    return Change(changed, attempt, moved, queue)


def return_claim(
    rollout: Rollout,
    attempt: Attempt,
    *,
    is_latest: bool,
    worker: Worker | None,
    now: float,
    lost: int = 0,
) -> Change:
    """Take back a claim whose reply was not delivered: the rollout goes back to the queue.

    The attempt ends as ``unresponsive``, and the rollout is retried regardless of its config. No
    agent ran, so the attempt counts as one that the infrastructure failed.
    Nothing changes once the attempt or the rollout has left ``preparing``.

    Args:
        rollout: The rollout.
        attempt: The attempt that the claim began.
        is_latest: Whether it is the rollout's latest.
        worker: Record of the attempt's worker, if any.
        now: The time, in epoch seconds.
        lost: How many earlier attempts the infrastructure failed.
    """
    if not is_latest or not (attempt.status == rollout.status == "preparing"):
        return Change()
    facts = {INFRASTRUCTURE: _DELIVERY, INFRASTRUCTURE_FAILURES: lost + 1}
    metadata = {**(attempt.metadata or {}), **facts}
    given_up = evolve(attempt, {"status": "unresponsive", "end_time": now, "metadata": metadata})
    changed, queue = _with_status(rollout, "requeuing", now)
    freed = _released(worker, "idle", now) if worker and is_on(worker, attempt) else None
    return Change(changed, given_up, freed, queue)


def is_returned_claim(attempt: Attempt) -> bool:
    """Whether :func:`return_claim` has ended an attempt: its claim is nobody's any more."""
    return attempt.status == "unresponsive" and failed_by(attempt) == _DELIVERY


def status_before_claim(attempt: Attempt) -> RolloutStatus:
    """Return the status that a rollout had in the queue before this attempt claimed it."""
    return "queuing" if attempt.sequence_id == 1 else "requeuing"


def rollout_status_after(attempt: Attempt, config: RolloutConfig) -> RolloutStatus:
    """Return the status that a rollout takes from the status of its latest attempt.

    Attempts that the infrastructure failed are counted apart from those that the agent failed.
    """
    status = attempt.status
    if status in ("preparing", "running", "succeeded"):
        return status
    lost = infrastructure_failures(attempt)
    said = attempt.metadata or {}
    if status == "failed" and INFRASTRUCTURE in said:
        repeats = said.get("repeatable") is not False and lost <= config.infrastructure_retries
        return "requeuing" if repeats else "failed"
    retry = status in config.retry_condition and attempt.sequence_id - lost < config.max_attempts
    return "requeuing" if retry else "failed"


# -- what happens to a rollout -------------------------------------------------------------------


def update_rollout(
    rollout: Rollout,
    changes: Mapping[str, Any],
    *,
    attempt: Attempt | None,
    worker: Worker | None,
    now: float,
) -> Change:
    """Write fields of a rollout; any status may follow any other.

    Cancelling and requeuing unassign the attempt from its worker; the runner detects this with its
    next heartbeat, once the rollout was cancelled or claimed by another.

    Args:
        rollout: The rollout to change.
        changes: Valid values of any of input, mode, resources_id, status, config and metadata.
        attempt: Its latest attempt, if any.
        worker: Record of that attempt's worker, if any.
        now: The time, in epoch seconds.
    """
    status: RolloutStatus | None = changes.get("status")
    changed = evolve(rollout, {**changes, "status": rollout.status})
    if status is None:
        return Change(changed)
    changed, queue = _with_status(changed, status, now)
    released = None
    if status in _UNASSIGNING_STATUSES and attempt is not None:
        released = released_from(attempt, worker, now=now)
    return Change(changed, worker=released, queue=queue)


# -- workers and the watchdog --------------------------------------------------------------------


def worker_heartbeat(
    worker_id: str, worker: Worker | None, changes: Mapping[str, Any], *, now: float
) -> Worker:
    """Return the worker after a heartbeat; ``changes`` may hold new ``heartbeat_stats``."""
    return evolve(worker or Worker(worker_id=worker_id), {**changes, "last_heartbeat_time": now})


def ended_at(rollout: Rollout, attempt: Attempt) -> float | None:
    """Return when an attempt ended for good, from when on its agent writes nothing that counts.

    None if it has not. After ``timeout`` and ``unresponsive`` spans are welcome: the first may be
    explained by them, and the second ends with one.
    """
    if rollout.status == "cancelled":
        return min(rollout.end_time or 0.0, attempt.end_time or math.inf)
    return (attempt.end_time or 0.0) if attempt.status in ("succeeded", "failed") else None


def is_watched(rollout: Rollout) -> bool:
    """Return whether the watchdog has to check the rollout's latest attempt."""
    config = rollout.config
    return rollout.status in RUNNING_STATUSES and (
        config.timeout_seconds is not None or config.unresponsive_seconds is not None
    )


def verdict(
    rollout: Rollout, attempt: Attempt, *, now: float
) -> Literal["timeout", "unresponsive"] | None:
    """Return the watchdog's new status for the latest attempt of a rollout, or None.

    A store applies the verdict with :func:`update_attempt`.
    """
    config = rollout.config
    if rollout.status not in RUNNING_STATUSES or attempt.status not in RUNNING_STATUSES:
        return None
    if config.timeout_seconds is not None and now - attempt.start_time > config.timeout_seconds:
        return "timeout"
    seen = attempt.last_heartbeat_time
    silence = now - (attempt.start_time if seen is None else seen)
    if config.unresponsive_seconds is not None and silence > config.unresponsive_seconds:
        return "unresponsive"
    return None


# -- helpers -------------------------------------------------------------------------------------


def _with_status(
    rollout: Rollout, status: RolloutStatus, now: float
) -> tuple[Rollout, QueueAction | None]:
    was_queued = rollout.status in QUEUING_STATUSES
    end_time = now if status in FINISHED_STATUSES else None
    queue: QueueAction | None = None
    if was_queued != (status in QUEUING_STATUSES):
        queue = "remove" if was_queued else "append"
    return evolve(rollout, {"status": status, "end_time": end_time}), queue


def _is_queued(rollout: Rollout) -> bool:
    return rollout.status in QUEUING_STATUSES


def _is_free(worker: Worker) -> bool:
    return worker.current_attempt_id is None


def _says_it_runs(worker: Worker) -> bool:
    listed: Any = (worker.heartbeat_stats or {}).get(RUNNING_ATTEMPTS)
    return isinstance(listed, list) and worker.current_attempt_id in listed


def _follow(
    worker: Worker, attempt: Attempt, status: AttemptStatus | None, now: float
) -> Worker | None:
    """Return the worker after a change of its attempt; ``status`` None: it was only assigned."""
    if attempt.status not in ENDED_STATUSES:
        return _put_on(worker, attempt, now)
    if status is None:  # an ended attempt cannot make the assigned worker busy
        return None
    # A runner that reports a result is alive; after the watchdog's verdict its state is unknown.
    return _released(worker, "idle" if status in ("succeeded", "failed") else "unknown", now)


def _put_on(worker: Worker, attempt: Attempt, now: float) -> Worker:
    ids = {"current_rollout_id": attempt.rollout_id, "current_attempt_id": attempt.attempt_id}
    return evolve(worker, {"status": "busy", "last_busy_time": now, **ids})


def _released(worker: Worker, status: WorkerStatus, now: float) -> Worker:
    ids = {"current_rollout_id": None, "current_attempt_id": None}
    return evolve(worker, {"status": status, "last_idle_time": now, **ids})
