"""A workload: what the recorded rollouts do, without when they did it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agl_core.errors import InvalidArgumentError

__all__ = ["Profile", "Workload"]


@dataclass(frozen=True, slots=True)
class Profile:
    """One recorded attempt.

    Attributes:
        steps: Seconds, in turns of the agent's own work and of a model call; first and last is the
            agent. A call's seconds are those that it takes on a server that is not full.
        failed: Whether the attempt failed, so that its rollout is tried again.

    Raises:
        InvalidArgumentError: The number of steps is even, or one is negative.
    """

    steps: Sequence[float]
    failed: bool = False

    def __post_init__(self) -> None:
        if len(self.steps) % 2 == 0 or min(self.steps) < 0:
            raise InvalidArgumentError(
                "steps begin and end with the agent's own work, and none is negative, not "
                f"{tuple(self.steps)}"
            )

    @property
    def calls(self) -> int:
        """Number of model calls."""
        return len(self.steps) // 2

    @property
    def call_seconds(self) -> float:
        """Seconds in model calls."""
        return sum(self.steps[1::2])

    @property
    def seconds(self) -> float:
        """Seconds of the whole attempt, on servers that are not full."""
        return sum(self.steps)


@dataclass(frozen=True, slots=True)
class Workload:
    """The recorded work of rollouts. The simulator draws from these records.

    Attributes:
        profiles: The attempts.
        turnarounds: Seconds between the end of a rollout and the same runner's next claim, while
            rollouts were in the queue.
        updates: Seconds from the end of a batch to the beginning of the next: what the algorithm
            took to learn. Empty if the rollouts were not in batches.
        batch: Rollouts per batch; None if they were not in batches.
        server_limit: How many calls at a time one model server serves at full speed. More calls
            share that speed. None if the servers were never full.
        most_calls: Most model calls at a time in the record, on all servers.
        runners: Most rollouts at a time in the record.
        servers: Number of model servers in the record.
        max_attempts: How often a rollout is tried.
    """

    profiles: Sequence[Profile]
    turnarounds: Sequence[float] = (0.0,)
    updates: Sequence[float] = ()
    batch: int | None = None
    server_limit: float | None = None
    most_calls: int = 0
    runners: int = 1
    servers: int = 1
    max_attempts: int = 1
