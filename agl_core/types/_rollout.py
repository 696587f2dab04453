"""Rollouts, attempts and workers: the records of a store.

Times are Unix epoch **seconds** (float, wall clock). Durations are seconds.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, model_validator
from pydantic_core import to_jsonable_python

from agl_core.types._json_values import as_json_value

TaskInput = Any
"""A task as the agent receives it: JSON values. Stores convert others by
:func:`~agl_core.types.as_json_value`."""

RolloutMode = Literal["train", "val", "test"]
RolloutStatus = Literal[
    "queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"
]
AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
WorkerStatus = Literal["idle", "busy", "unknown"]

QUEUING_STATUSES: Final[frozenset[RolloutStatus]] = frozenset({"queuing", "requeuing"})
"""Statuses of rollouts in the queue."""
RUNNING_STATUSES: Final[frozenset[RolloutStatus]] = frozenset({"preparing", "running"})
"""Statuses of rollouts and attempts that a worker holds."""
FINISHED_STATUSES: Final[frozenset[RolloutStatus]] = frozenset({"failed", "succeeded", "cancelled"})
"""Terminal statuses of rollouts."""


class ReplayConfig(BaseModel, frozen=True):
    """A rollout that repeats the recording of another; needs a replayer."""

    rollout_id: str
    """The recorded rollout."""
    attempt_id: str | None = None
    """Its recorded attempt; None: the latest."""
    until: int | None = Field(default=None, ge=0)
    """Number of calls that are answered from the recording. None: all."""
    then: Literal["stop", "live"] = "stop"
    """What happens to calls after ``until``: refused, or sent to the rollout's models (a fork)."""
    on_divergence: Literal["stop", "live", "ignore"] = "stop"
    """The same from the first call that is not the recorded one; ``ignore`` answers it by place."""


class RolloutConfig(BaseModel):
    """Time limits and retries of a rollout's attempts, and what they repeat."""

    timeout_seconds: float | None = None
    """Wall-clock cap of one attempt, from its ``start_time``. None: no cap."""
    unresponsive_seconds: float | None = None
    """Longest silence between two heartbeats (span arrivals) of an attempt. None: no limit."""
    max_attempts: int = Field(default=1, ge=1)
    """Maximum number of attempts of a rollout, including the first."""
    retry_condition: list[AttemptStatus] = Field(default_factory=list[AttemptStatus])
    """Attempt statuses after which the rollout goes back to the queue."""
    infrastructure_retries: int = Field(default=2, ge=0)
    """Further attempts after failures that the proxy or the store reported. They do not count
    towards ``max_attempts``. 0 for an agent whose side effects must not be repeated."""
    replay: ReplayConfig | None = None
    """The recording that answers model calls. None: the models do."""


class Rollout(BaseModel):
    """One task for an agent, and its status."""

    rollout_id: str
    input: TaskInput
    start_time: float
    """When the rollout was created (enqueued or started), not when work began."""
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus = "queuing"
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: dict[str, Any] | None = None


def task_digest(task: TaskInput) -> str:
    """Return a digest of a task, as 32 hexadecimal digits.

    Rollouts with equal inputs have the same task: the order of keys does not matter, and the digest
    is the same in every process and store.
    """
    kept = as_json_value(task, "task")
    plain = to_jsonable_python(kept, inf_nan_mode="strings", fallback=repr)
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Attempt(BaseModel):
    """One execution of a rollout by a worker."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """Ordinal of the attempt within its rollout, from 1."""
    start_time: float
    end_time: float | None = None
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None


class AttemptedRollout(Rollout):
    """A rollout with its latest attempt attached.

    In JSON, the key ``attempt`` distinguishes it from a plain :class:`Rollout`.
    """

    attempt: Attempt

    @model_validator(mode="after")
    def _attempt_belongs(self) -> AttemptedRollout:
        if self.attempt.rollout_id != self.rollout_id:
            raise ValueError(
                f"attempt {self.attempt.attempt_id} belongs to rollout {self.attempt.rollout_id}, "
                f"not to {self.rollout_id}"
            )
        return self


class EnqueueRolloutRequest(BaseModel):
    """One rollout to enqueue with :meth:`LightningStore.enqueue_many_rollouts`."""

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None


class Worker(BaseModel):
    """The store's record of a runner; created by its first heartbeat or claim."""

    worker_id: str
    status: WorkerStatus = "unknown"
    heartbeat_stats: dict[str, Any] | None = None
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None
