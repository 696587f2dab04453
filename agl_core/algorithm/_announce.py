"""A store wrapper that reports an algorithm's changes of resources to listeners."""

from __future__ import annotations

from typing import Any

from agl_core.plugins._events import notify
from agl_core.store import LightningStore, LightningStoreThreaded
from agl_core.types import NamedResources, ResourcesUpdate


class AnnouncingStore(LightningStoreThreaded):
    """Wraps a store for an algorithm; each snapshot written fires ``resources_changed``.

    Used only if a listener is registered. It is pickled as the inner store.

    Args:
        store: The store that keeps everything.
        origin: Name of the algorithm.
    """

    def __init__(self, store: LightningStore, origin: str) -> None:
        super().__init__(store)
        self._origin = origin

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        return self._announced(await super().add_resources(resources))

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        return self._announced(await super().update_resources(resources_id, resources))

    def _announced(self, update: ResourcesUpdate) -> ResourcesUpdate:
        notify("resources_changed", resources=update, origin=self._origin)
        return update

    def __getattr__(self, name: str) -> Any:
        if name == "store":  # not set (yet): without this, the lookup would recurse
            raise AttributeError(name)
        return getattr(self.store, name)

    def __reduce__(self) -> tuple[Any, tuple[LightningStore]]:
        return _itself, (self.store,)


def _itself(store: LightningStore) -> LightningStore:
    return store
