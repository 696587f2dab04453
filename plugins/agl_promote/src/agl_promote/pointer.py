"""What is live: the snapshot ``live:<name>``, which only promotions and roll-backs replace.

It holds the resources themselves, so a rollout with ``resources_id="live:booking"`` receives them,
and a checkpoint that says where they come from, and which trial is on. The checkpoint also keeps
the snapshot from ever being the latest: searches and live agents do not meet.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.types import Checkpoint
from agl_promote.trial import LIVE, LIVE_KEY, Trial

if TYPE_CHECKING:
    from agl_core.store import LightningStore

__all__ = ["LivePointer", "require_compare_and_set"]


class LivePointer(NamedTuple):
    """What is live under a name.

    Attributes:
        name: The name.
        version: Counts its changes; 0 if nothing is live.
        history: Its changes, oldest first: ``resources_id``, ``at`` (epoch seconds), ``why``, and
            ``back_to`` of a roll-back: the index of the change that it went back to.
        trial: The trial that is on.
    """

    name: str
    version: int
    history: list[dict[str, Any]]
    trial: Trial | None = None

    @property
    def resources_id(self) -> str | None:
        """The snapshot that it holds; None if nothing is live."""
        return self.history[-1]["resources_id"] if self.history else None

    @property
    def tried(self) -> str | None:
        """The candidate of the trial that is on, unless it is live and a holdback is tried."""
        on = self.trial
        return on.candidate if on is not None and on.champion == self.resources_id else None

    @classmethod
    async def read(cls, store: LightningStore, name: str) -> LivePointer:
        """Read what is live."""
        stored = await store.get_resources_by_id(LIVE + name)
        checkpoint = None if stored is None else stored.resources.get(LIVE_KEY)
        if stored is None or not isinstance(checkpoint, Checkpoint):
            return cls(name, 0, [])
        return cls(name, stored.version, checkpoint.state["history"], Trial.in_snapshot(stored))

    def beginning_with(self, resources_id: str, at: float) -> LivePointer:
        """Return it with a first snapshot, if there is none: a roll-back leads there."""
        if self.history:
            return self
        return self._replace(history=[{"resources_id": resources_id, "at": at, "why": "first"}])

    async def point_to(
        self, store: LightningStore, resources_id: str, why: str, trial: Trial | None = None
    ) -> LivePointer:
        """Make a snapshot live, if nobody has changed what is live since it was read.

        Args:
            store: The store.
            resources_id: The snapshot.
            why: For the history.
            trial: The trial that begins; another one ends.

        Raises:
            ConfigError: Somebody has, or the store does not have the snapshot.
        """
        entry = {"resources_id": resources_id, "at": time.time(), "why": why}
        return await self._replace(history=[*self.history, entry], trial=trial)._write(
            store, resources_id
        )

    async def try_out(self, store: LightningStore, trial: Trial | None) -> LivePointer:
        """Begin a trial, or end the one that is on; what is live stays so.

        Raises:
            ConfigError: As for :meth:`point_to`.
        """
        held = LIVE + self.name if self.version else self.history[-1]["resources_id"]
        return await self._replace(trial=trial)._write(store, held)

    async def roll_back(self, store: LightningStore, why: str) -> LivePointer:
        """End the trial of a candidate that is not live; else make live what was live before.

        What was rolled back does not come back: a second roll-back leads to what was live before
        the version that the first one led to.

        Args:
            store: The store.
            why: For the history, also of a trial that ends.

        Raises:
            InvalidArgumentError: Nothing was.
            ConfigError: What is live was changed since it was read.
        """
        place = self._place_of(len(self.history) - 1)
        if self.tried is not None:
            return await self._back_to(place, why).try_out(store, None)
        before = self._before(place)
        if before is None:
            raise InvalidArgumentError(
                f"nothing else was live as live:{self.name} before {self.resources_id or 'now'}"
            )
        resources_id = self.history[before]["resources_id"]
        return await self._back_to(before, why)._write(store, resources_id)

    def _back_to(self, place: int, why: str) -> LivePointer:
        """Return it with what a change of its history made live, and without a trial."""
        resources_id = self.history[place]["resources_id"]
        entry = {"resources_id": resources_id, "at": time.time(), "why": why, "back_to": place}
        return self._replace(history=[*self.history, entry], trial=None)

    def _place_of(self, index: int) -> int:
        """Return where a change stands in its history: of a roll-back, where it went back to."""
        return self.history[index].get("back_to", index) if index >= 0 else index

    def _before(self, place: int) -> int | None:
        """Return the last change before another one that made something else live."""
        while place > 0:
            place = self._place_of(place - 1)
            if self.history[place]["resources_id"] != self.resources_id:
                return place
        return None

    async def _write(self, store: LightningStore, source: str) -> LivePointer:
        """Replace the version that was read by this one, with the resources of a snapshot."""
        require_compare_and_set(store)
        snapshot = await store.get_resources_by_id(source)
        if snapshot is None:
            raise ConfigError(f"the store has no resources {source!r}")
        resources = {
            name: it for name, it in snapshot.resources.items() if not isinstance(it, Checkpoint)
        }
        trial = None if self.trial is None else self.trial._asdict()
        state = {"history": self.history, "trial": trial}
        swapped = await store.swap_resources(
            LIVE + self.name, {**resources, LIVE_KEY: Checkpoint(state=state)}, version=self.version
        )
        if swapped is None:
            raise ConfigError(f"live:{self.name} was changed meanwhile; plan against what is live")
        return self._replace(version=swapped.version)


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
