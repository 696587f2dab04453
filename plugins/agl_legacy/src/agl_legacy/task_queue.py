"""The state of the task server of 0.1: tasks, claims, finished rollouts and resources. No I/O.

Not thread-safe: one event loop owns it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from agl_core.types import NamedResources, ResourcesUpdate, RolloutMode
from agl_legacy.types import RolloutLegacy, Task

__all__ = ["TaskQueue"]


class TaskQueue:
    """Hands out each task until it is finished.

    Args:
        timeout: Seconds after which a task that was claimed and not finished is handed out again.
        now: Returns the time in epoch seconds.
    """

    def __init__(self, timeout: float, now: Callable[[], float] = time.time) -> None:
        self._timeout = timeout
        self._now = now
        self._waiting: dict[str, Task] = {}
        self._claimed: dict[str, Task] = {}
        self._finished: dict[str, RolloutLegacy] = {}
        self._resources: dict[str, ResourcesUpdate] = {}

    # -- tasks -----------------------------------------------------------------------------------

    def add(
        self,
        input: Any,
        mode: RolloutMode | None,
        resources_id: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> str:
        """Append a task; return its rollout's id."""
        task = Task(
            rollout_id=f"rollout-{uuid.uuid4()}",
            input=input,
            mode=mode,
            resources_id=resources_id,
            create_time=self._now(),
            num_claims=0,
            metadata=dict(metadata or {}),
        )
        self._waiting[task.rollout_id] = task
        return task.rollout_id

    def claim(self) -> Task | None:
        """Return the next task, or None. Tasks whose claim is too old go to the tail first."""
        now = self._now()
        for rollout_id, task in list(self._claimed.items()):
            if now - (task.last_claim_time or now) > self._timeout:
                self._waiting[rollout_id] = self._claimed.pop(rollout_id)
        if not self._waiting:
            return None
        task = self._waiting.pop(next(iter(self._waiting)))
        task = task.model_copy(
            update={"last_claim_time": now, "num_claims": (task.num_claims or 0) + 1}
        )
        self._claimed[task.rollout_id] = task
        return task

    def release(self, task: Task) -> None:
        """Undo a claim that did not reach its client; the task is the next one again."""
        if self._claimed.pop(task.rollout_id, None) is not None:
            self._waiting = {task.rollout_id: task, **self._waiting}

    # -- finished rollouts -----------------------------------------------------------------------

    def finish(self, rollout: RolloutLegacy) -> None:
        """Keep a finished rollout; its task is not handed out again."""
        self._claimed.pop(rollout.rollout_id, None)
        self._waiting.pop(rollout.rollout_id, None)
        self._finished[rollout.rollout_id] = rollout

    def take(self, rollout_id: str) -> RolloutLegacy | None:
        """Return a finished rollout and forget it; None if it is not finished."""
        return self._finished.pop(rollout_id, None)

    def take_all(self) -> list[RolloutLegacy]:
        """Return every finished rollout, in the order in which they finished, and forget them."""
        finished, self._finished = self._finished, {}
        return list(finished.values())

    # -- resources -------------------------------------------------------------------------------

    def set_resources(self, resources: NamedResources) -> str:
        """Keep a snapshot as the latest one; return its id."""
        now = self._now()
        resources_id = f"res-{uuid.uuid4()}"
        self._resources[resources_id] = ResourcesUpdate(
            resources_id=resources_id,
            create_time=now,
            update_time=now,
            version=1,
            resources=resources,
        )
        return resources_id

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        """Return a snapshot; ``latest`` is the last one that was set."""
        if resources_id == "latest":
            return next(reversed(self._resources.values()), None)
        return self._resources.get(resources_id)
