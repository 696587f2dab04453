"""What is live: the snapshot ``live:<name>``, which only promotions and roll-backs replace.

It holds the resources themselves, so a rollout with ``resources_id="live:booking"`` receives them,
and a checkpoint that says where they come from. The checkpoint also keeps the snapshot from ever
being the latest: searches and live agents do not meet.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.types import Checkpoint

if TYPE_CHECKING:
    from agl_core.store import LightningStore

__all__ = ["LivePointer", "require_compare_and_set"]

_KEY: Final = "live"
_PREFIX: Final = "live:"


class LivePointer(NamedTuple):
    """What is live under a name.

    Attributes:
        name: The name.
        version: Counts its changes; 0 if nothing is live.
        resources_id: The snapshot that it holds; None if nothing is live.
        history: Its changes, oldest first: ``resources_id``, ``at`` (epoch seconds), ``why``.
    """

    name: str
    version: int
    resources_id: str | None
    history: list[dict[str, Any]]

    @classmethod
    async def read(cls, store: LightningStore, name: str) -> LivePointer:
        """Read what is live."""
        stored = await store.get_resources_by_id(_PREFIX + name)
        checkpoint = None if stored is None else stored.resources.get(_KEY)
        if stored is None or not isinstance(checkpoint, Checkpoint):
            return cls(name, 0, None, [])
        history = checkpoint.state["history"]
        return cls(name, stored.version, history[-1]["resources_id"], history)

    async def point_to(self, store: LightningStore, resources_id: str, why: str) -> LivePointer:
        """Make a snapshot live, if nobody has changed what is live since it was read.

        Raises:
            ConfigError: Somebody has, or the store does not have the snapshot.
        """
        require_compare_and_set(store)
        snapshot = await store.get_resources_by_id(resources_id)
        if snapshot is None:
            raise ConfigError(f"the store has no resources {resources_id!r}")
        resources = {
            name: it for name, it in snapshot.resources.items() if not isinstance(it, Checkpoint)
        }
        entry = {"resources_id": resources_id, "at": time.time(), "why": why}
        history = [*self.history, entry]
        swapped = await store.swap_resources(
            _PREFIX + self.name,
            {**resources, _KEY: Checkpoint(state={"history": history})},
            version=self.version,
        )
        if swapped is None:
            raise ConfigError(f"live:{self.name} was changed meanwhile; plan against what is live")
        return LivePointer(self.name, swapped.version, resources_id, history)

    async def roll_back(self, store: LightningStore, why: str) -> LivePointer:
        """Make live what was live before.

        Raises:
            InvalidArgumentError: Nothing was.
            ConfigError: What is live was changed since it was read.
        """
        earlier = [one["resources_id"] for one in self.history]
        before = next((one for one in reversed(earlier) if one != self.resources_id), None)
        if before is None:
            raise InvalidArgumentError(f"nothing else was live as live:{self.name}")
        return await self.point_to(store, before, why)


def require_compare_and_set(store: LightningStore) -> None:
    """Check that two processes cannot overwrite each other's decisions.

    Raises:
        ConfigError: The store has no compare-and-set.
    """
    if not store.capabilities.get("compare_and_set"):
        raise ConfigError(
            f"{type(store).__name__} cannot compare and set, so two promotions could overwrite "
            "each other; use the store sqlite, postgres or mongo, or their server",
            path="store",
        )
