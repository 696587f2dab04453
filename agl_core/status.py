"""What the records of attempts and workers say, for all who read them.

The rules by which records change are the store's; these functions only read. They are pure.
"""

from __future__ import annotations

from typing import Any, Final

from agl_core.types import Attempt, Worker, WorkerStatus

__all__ = [
    "INFRASTRUCTURE",
    "INFRASTRUCTURE_FAILURES",
    "RUNNING_ATTEMPTS",
    "failed_by",
    "infrastructure_failures",
    "is_abandoned",
    "is_on",
    "was_interrupted",
    "worker_status",
]

RUNNING_ATTEMPTS: Final = "running_attempts"
"""Key of ``heartbeat_stats``: ids of the attempts of a runner that runs several at a time."""
INFRASTRUCTURE: Final = "infrastructure"
"""Key of an attempt's metadata: what failed it that is not the agent, such as ``proxy``."""
INFRASTRUCTURE_FAILURES: Final = "infrastructure_failures"
"""Key of an attempt's metadata: how many of the rollout's attempts, up to this one, failed so."""
_CLAIM_SECONDS: Final = 2.0
"""A heartbeat that was sent this soon after a claim may not list it yet."""
_SILENT_SECONDS: Final = 60.0
"""An idle runner asks for work every few seconds."""


def is_on(worker: Worker, attempt: Attempt) -> bool:
    """Return whether a worker's record names an attempt as the one that it runs."""
    return (
        worker.current_attempt_id == attempt.attempt_id
        and worker.current_rollout_id == attempt.rollout_id
    )


def failed_by(attempt: Attempt) -> str | None:
    """Return what failed an attempt that is not the agent, such as ``proxy``; None otherwise.

    Such an attempt says nothing about the agent, so it is never scored.
    """
    said: Any = (attempt.metadata or {}).get(INFRASTRUCTURE)
    return str(said) if said and attempt.status != "succeeded" else None


def infrastructure_failures(attempt: Attempt) -> int:
    """Return how many of a rollout's attempts, up to this one, the infrastructure failed."""
    said: Any = (attempt.metadata or {}).get(INFRASTRUCTURE_FAILURES)
    return min(max(said, 0), attempt.sequence_id) if type(said) is int else 0


def worker_status(worker: Worker, *, now: float) -> WorkerStatus:
    """Return a worker's status for people: ``unknown`` if it is silent, so maybe dead.

    A busy runner sends heartbeats, and an idle one asks for work.

    Args:
        worker: Its record, which nobody changes when it dies.
        now: The store's time, in epoch seconds.
    """
    heard = max(worker.last_heartbeat_time or 0.0, worker.last_dequeue_time or 0.0)
    gone = 0.0 < heard < now - _SILENT_SECONDS
    return "unknown" if gone else worker.status


def is_abandoned(worker: Worker, attempt: Attempt) -> bool:
    """Return whether a worker no longer runs an attempt that it claimed.

    A worker's record names the attempt that it claimed last, in some stores a moment after the
    claim. The heartbeats of a runner with several attempts list all of them. A claim may take a
    moment to reach the runner.
    """
    if is_on(worker, attempt):
        return False
    listed: Any = (worker.heartbeat_stats or {}).get(RUNNING_ATTEMPTS)
    beat = worker.last_heartbeat_time
    if listed is None:
        noted = (beat, worker.last_dequeue_time, worker.last_busy_time, worker.last_idle_time)
        return any(at is not None and at >= attempt.start_time for at in noted)
    late = beat is not None and beat > attempt.start_time + _CLAIM_SECONDS
    return late and attempt.attempt_id not in listed


def was_interrupted(attempt: Attempt) -> bool:
    """Return whether an ended attempt has an error that is not the agent's: it lost its runner.

    A runner writes the type of the agent's exception; other code that fails an attempt cannot.
    """
    said = attempt.metadata or {}
    return "error" in said and said.get("error_type") in (None, "AgentCancelledError")
