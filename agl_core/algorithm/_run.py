"""A run: what an algorithm enqueues its tasks and saves its state through.

A run of this module stores nothing of its own. Runs that can be resumed come from a plugin of the
kind ``run``; algorithms are written the same way for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic_core import PydanticSerializationError, from_json, to_json

from agl_core.errors import InvalidArgumentError
from agl_core.ids import generate_id
from agl_core.plugins._events import notify

if TYPE_CHECKING:
    from agl_core.algorithm._reward_scale import RewardRange
    from agl_core.store import LightningStore
    from agl_core.types import EnqueueRolloutRequest, NamedResources, ResourcesUpdate, Rollout

_PREFIX_DIGITS: Final = 8
"""Digits that tell the snapshots of unnamed runs apart: a store holds hundreds of such runs."""


class Run:
    """One run of an algorithm, without a name: it cannot be resumed.

    Used by one algorithm on one event loop. A class of the kind ``run`` derives from this one, and
    keeps in the store what a resumed run needs.

    Args:
        store: Where the rollouts go.

    Attributes:
        name: Name of the run; empty if it cannot be resumed.
        state: State that the algorithm saved last, any JSON value; None before that.
        metrics: The metrics saved so far, the last value of each.
        finished: Whether the algorithm has completed.
        reward_range: Lowest and highest possible reward, if the user declared them.
        result_id: Id of the snapshot that is the result, if :meth:`set_result` was told.
        origin: Name of the algorithm, for listeners; empty outside a trainer, where nobody is told.
    """

    name: str = ""

    def __init__(self, store: LightningStore) -> None:
        self.state: Any = None
        self.metrics: dict[str, float] = {}
        self.finished = False
        self.reward_range: RewardRange | None = None
        self.result_id: str | None = None
        self.origin = ""
        self._store = store
        self._prefix = f"run-{generate_id(_PREFIX_DIGITS)}"

    @classmethod
    async def open(cls, store: LightningStore, name: str = "") -> Self:
        """Begin a run, or resume the run of this name.

        Args:
            store: Where the rollouts go.
            name: Name of the run. Only a class that keeps runs takes one.

        Raises:
            RunInUseError: Another process leads the run.
        """
        if name:
            raise InvalidArgumentError(
                f"the run {name!r} has a name, and {cls.__name__} keeps none"
            )
        return cls(store)

    async def reopen(self) -> None:
        """Continue a finished run from its state."""
        self.finished = False

    def recording(self, about: Mapping[str, Any]) -> AbstractAsyncContextManager[object]:
        """Record the steps that the algorithm reports inside the block, and how the block ends.

        Args:
            about: Parts of the run and how it is resumed, a JSON object for people.
        """
        return nullcontext()

    async def save(self, state: Any, metrics: Mapping[str, float] | None = None) -> None:
        """Keep the state from which the run can be resumed.

        Args:
            state: A JSON value; it replaces the last one.
            metrics: Figures to show for the run; they are merged with those saved before.

        Raises:
            InvalidArgumentError: The state has no JSON form.
        """
        try:
            # The state must read the same whether it was read from a file or is in memory.
            self.state = from_json(to_json(state, inf_nan_mode="constants"))
        except PydanticSerializationError as error:
            raise InvalidArgumentError(f"the state has no JSON form: {error}") from error
        self.metrics.update(metrics or {})
        await self._keep()
        if self.origin:
            notify("run_saved", run=self.name, state=self.state, origin=self.origin)

    async def _keep(self) -> None:
        """Store the state that was saved; a run of this class stores none."""

    async def finish(self, *, has_result: bool = True) -> None:
        """Mark the run as finished: resuming it does nothing, unless it is asked for more.

        Args:
            has_result: Whether it has a result: the snapshot of :meth:`set_result`, else the latest
                one in the store, which may be another run's.
        """
        self.finished = True

    async def set_result(self, resources_id: str) -> None:
        """Keep which snapshot is the result of the run, also of one that is then interrupted."""
        self.result_id = resources_id

    async def put_resources(
        self, name: str, resources: NamedResources, *, latest: bool = True
    ) -> str:
        """Store a snapshot of this run.

        Args:
            name: Name of the snapshot, unique in the run.
            resources: Content of the snapshot.
            latest: Whether it becomes the latest snapshot, which live agents receive. What a search
                only tries does not: it gets a checkpoint, which agents do not receive.

        Returns:
            The snapshot's id; a run without a name has a random prefix, so that no other run
            replaces the snapshot.
        """
        if latest:
            added = await self._store.add_resources(resources)
            self._announce(added)
            return added.resources_id
        resources_id = f"{self._prefix}/{name}"
        self._announce(
            await self._store.update_resources(resources_id, self._tried(name, resources))
        )
        return resources_id

    def _announce(self, update: ResourcesUpdate) -> None:
        """Tell listeners of a snapshot that the algorithm stored through the run."""
        if self.origin:
            notify("resources_changed", resources=update, origin=self.origin)

    def _tried(self, name: str, resources: NamedResources) -> NamedResources:
        """Return the resources with a mark that keeps them from being the latest."""
        from agl_core.types import Checkpoint

        mark = Checkpoint(state={"run": self.name, "tried": name})
        return {**resources, "checkpoint": mark}

    async def enqueued(self, batch: str) -> dict[int, Rollout]:
        """Return the rollouts of a batch that earlier processes of this run enqueued, by index."""
        return {}

    async def enqueue(
        self, requests: Sequence[EnqueueRolloutRequest], *, batch: str = "", first: int = 0
    ) -> list[Rollout]:
        """Enqueue the tasks that this run has not enqueued before; return all rollouts in order.

        Args:
            requests: The tasks.
            batch: Name of the batch; required in a run with a name.
            first: Index of the first task in the batch.

        Raises:
            InvalidArgumentError: The batch has no name, or this process has enqueued these tasks
                before.
            ConfigError: An earlier process of the run enqueued other tasks, or another mode.
        """
        return list(await self._store.enqueue_many_rollouts(requests))

    async def wait_for_rollouts(
        self, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        """Wait for rollouts as the store does.

        Args:
            rollout_ids: Rollouts of this run.
            timeout: Seconds; None waits without a limit.

        Returns:
            Those that have ended.
        """
        return await self._store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)
