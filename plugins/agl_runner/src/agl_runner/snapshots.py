"""Reads each resource snapshot once for attempts that were claimed together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agl_core.types import Checkpoint, copy_resources

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import NamedResources, ResourcesUpdate


class Snapshots:
    """The resource snapshots of attempts that were claimed together; used on one event loop.

    A later claim reads them again: a snapshot may be updated before a rollout is enqueued.

    Args:
        store: The store of the snapshots.
        shared: Whether several attempts read. A single one needs no task for it.
    """

    def __init__(self, store: LightningStore, *, shared: bool = False) -> None:
        self._store = store
        self._shared = shared
        self._reads: dict[str | None, asyncio.Task[ResourcesUpdate | None]] = {}

    async def get(self, resources_id: str | None) -> NamedResources | None:
        """Return a copy of the resources of a snapshot.

        Args:
            resources_id: The snapshot; None means the latest one.

        Returns:
            The resources; None if the store has no such snapshot.
        """
        read = self._read_once if self._shared else self._read
        update = await read(resources_id)
        if update is None:
            return None
        # A candidate of a search is marked by a checkpoint, which is nothing for agents.
        return copy_resources(
            {
                name: resource
                for name, resource in update.resources.items()
                if not isinstance(resource, Checkpoint)
            }
        )

    async def _read_once(self, resources_id: str | None) -> ResourcesUpdate | None:
        read = self._reads.get(resources_id)
        if read is None:
            read = self._reads[resources_id] = asyncio.create_task(self._read(resources_id))
        # Shielded: others wait for the same read when one attempt is cancelled.
        return await asyncio.shield(read)

    async def _read(self, resources_id: str | None) -> ResourcesUpdate | None:
        if resources_id is None:
            return await self._store.get_latest_resources()
        return await self._store.get_resources_by_id(resources_id)
