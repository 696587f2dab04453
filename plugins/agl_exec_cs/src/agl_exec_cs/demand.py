"""The number of rollouts that need a runner, for autoscaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from agl_core.execution import ThreadingEvent
from agl_core.store import LightningStore
from agl_core.types import Rollout, RolloutStatus
from agl_exec_cs.run_store import RunStore

__all__ = ["ScaledStore", "open_rollouts"]

_OPEN: Final[list[RolloutStatus]] = ["queuing", "preparing", "running", "requeuing"]


class ScaledStore(RunStore):
    """The store of a run; it announces new work.

    Thread-safe.

    Args:
        store: The store that keeps everything.

    Attributes:
        enqueued: Set when rollouts were enqueued.
    """

    def __init__(self, store: LightningStore) -> None:
        super().__init__(store)
        self.enqueued = ThreadingEvent()

    async def enqueue_rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        rollout = await super().enqueue_rollout(*args, **kwargs)
        self.enqueued.set()
        return rollout

    async def enqueue_many_rollouts(self, *args: Any, **kwargs: Any) -> Sequence[Rollout]:
        rollouts = await super().enqueue_many_rollouts(*args, **kwargs)
        self.enqueued.set()
        return rollouts


async def open_rollouts(store: LightningStore) -> int:
    """Return the number of rollouts that wait for a runner or have one."""
    return (await store.query_rollouts(status_in=_OPEN, limit=1)).total
