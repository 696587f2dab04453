"""The number of rollouts that need a runner, for autoscaling."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from agl_core.execution import ThreadingEvent
from agl_core.store import Interceptor, LightningStore, Next, StoreCall
from agl_core.types import RolloutStatus
from agl_exec_cs.run_store import RunStore

__all__ = ["ScaledStore", "open_rollouts"]

_OPEN: Final[list[RolloutStatus]] = ["queuing", "preparing", "running", "requeuing"]


class _Demand(Interceptor):
    """Sets an event when rollouts were enqueued."""

    watches = ("enqueue_rollout", "enqueue_many_rollouts")
    travels: ClassVar[bool] = False  # the event belongs to the process of the run

    def __init__(self) -> None:
        self.enqueued = ThreadingEvent()

    async def around(self, call: StoreCall, next: Next) -> Any:
        result = await next(call)
        self.enqueued.set()
        return result


class ScaledStore(RunStore):
    """The store of a run; it announces new work.

    Thread-safe.

    Args:
        store: The store that keeps everything.

    Attributes:
        enqueued: Set when rollouts were enqueued.
    """

    def __init__(self, store: LightningStore) -> None:
        demand = _Demand()
        self.enqueued = demand.enqueued
        super().__init__(store, demand)


async def open_rollouts(store: LightningStore) -> int:
    """Return the number of rollouts that wait for a runner or have one."""
    return (await store.query_rollouts(status_in=_OPEN, limit=1)).total
