"""A promotion in a store: its plan, who works on it, its decision, and what it makes live.

All of it is one checkpoint, ``promotion:<name>``, which is only ever written by compare-and-set.
The plan comes before the data and is never changed. One process at a time works on a promotion: it
holds a lease that it renews with every write, so one that was cut off and comes back is refused.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio
import psutil

from agl_core.errors import ConfigError
from agl_core.ids import generate_id
from agl_core.types import Checkpoint
from agl_promote.evidence import Decision
from agl_promote.plan import Plan
from agl_promote.pointer import LivePointer, require_compare_and_set

if TYPE_CHECKING:
    from agl_core.store import LightningStore

__all__ = ["LEASE_SECONDS", "Promotion"]

LEASE_SECONDS: Final = 60.0
"""How long a promotion belongs to a process that has written nothing."""

_KEY: Final = "promotion"
_PREFIX: Final = "promotion:"


class Promotion:
    """One promotion in a store. For one event loop.

    Args:
        store: The store.
        plan: The plan.
        version: Version of the checkpoint that was read.
        state: Its content.
    """

    def __init__(
        self, store: LightningStore, plan: Plan, version: int, state: Mapping[str, Any]
    ) -> None:
        self.plan = plan
        self._store = store
        self._version = version
        self._state = dict(state)
        self._owner = f"{platform.node()}:{os.getpid()}:{generate_id(8)}"
        self._writing = anyio.Lock()

    @classmethod
    async def create(cls, store: LightningStore, plan: Plan) -> Promotion:
        """Store a plan.

        Raises:
            ConfigError: There is a promotion of this name, or the store cannot compare and set.
        """
        require_compare_and_set(store)
        state = {
            "plan": plan.model_dump(mode="json"),
            "digest": plan.digest,
            "planned": time.time(),
            "owner": "",
            "until": 0.0,
            "decision": None,
            "pairs": 0,
        }
        promotion = cls(store, plan, 0, state)
        if not await promotion._write():
            raise ConfigError(
                f"there is a promotion {plan.name!r} already, and a plan cannot be changed; show "
                "it, or choose another name"
            )
        return promotion

    @classmethod
    async def open(cls, store: LightningStore, name: str) -> Promotion:
        """Read a promotion.

        Raises:
            ConfigError: There is none, or its plan was changed.
        """
        stored = await store.get_resources_by_id(_PREFIX + name)
        checkpoint = None if stored is None else stored.resources.get(_KEY)
        if stored is None or not isinstance(checkpoint, Checkpoint):
            raise ConfigError(f"there is no promotion {name!r}; agl promote plan makes one")
        state = checkpoint.state
        plan = Plan.model_validate(state["plan"])
        if plan.digest != state["digest"]:
            raise ConfigError(f"the plan of the promotion {name!r} was changed after it was made")
        return cls(store, plan, stored.version, state)

    @property
    def decision(self) -> Decision | None:
        """The final decision, once there is one."""
        stored = self._state["decision"]
        return None if stored is None else Decision(**stored)

    @property
    def pairs(self) -> int:
        """Number of pairs that were taken into account so far."""
        return self._state["pairs"]

    async def acquire(self) -> None:
        """Take the promotion for this process.

        Raises:
            ConfigError: Another process works on it.
        """
        if self._state["until"] > time.time() and not _is_dead(self._state["owner"]):
            left = self._state["until"] - time.time()
            raise ConfigError(
                f"another process works on the promotion {self.plan.name!r}; if it was killed, try "
                f"again in {left:.0f} s"
            )
        self._state |= {"owner": self._owner, "until": time.time() + LEASE_SECONDS}
        await self._write_or_raise()

    async def renew(self, pairs: int) -> None:
        """Record progress, and keep the lease.

        Raises:
            ConfigError: Another process has taken the promotion.
        """
        self._state |= {"pairs": pairs, "until": time.time() + LEASE_SECONDS}
        await self._write_or_raise()

    async def release(self) -> None:
        """Let another process go on."""
        self._state |= {"owner": "", "until": 0.0}
        await self._write()

    async def decide(self, decision: Decision) -> None:
        """Record the final decision; after ``promote`` make the candidate live.

        A process that is killed between the two steps does the second one when it is resumed.

        Raises:
            ConfigError: Another process has taken the promotion, or the champion is not live any
                more.
        """
        fields = {**decision._asdict(), "guardrails": dict(decision.guardrails)}
        self._state |= {"decision": fields, "pairs": decision.pairs}
        await self._write_or_raise()
        await self.apply()

    async def apply(self) -> None:
        """Make the candidate live, if that was decided and not done yet.

        Raises:
            ConfigError: What is live was changed since the plan was made.
        """
        decision, plan = self.decision, self.plan
        if decision is None or decision.kind != "promote":
            return
        live = await LivePointer.read(self._store, plan.name)
        why = f"promotion {plan.name} {plan.digest}"
        if any(one["why"] == why for one in live.history):
            return
        if live.version != plan.champion_version:
            raise ConfigError(
                f"live:{plan.name} was changed since the plan was made, so its evidence is about "
                "another champion; plan again"
            )
        if not live.history:  # so that a roll-back leads to the champion
            first = {"resources_id": plan.champion, "at": self._state["planned"], "why": "first"}
            live = live._replace(history=[first])
        await live.point_to(self._store, plan.candidate, why)

    async def _write_or_raise(self) -> None:
        if not await self._write():
            raise ConfigError(f"another process has taken the promotion {self.plan.name!r}")

    async def _write(self) -> bool:
        async with self._writing:
            stored = await self._store.swap_resources(
                _PREFIX + self.plan.name,
                {_KEY: Checkpoint(state=self._state)},
                version=self._version,
            )
            if stored is not None:
                self._version = stored.version
            return stored is not None


def _is_dead(owner: str) -> bool:
    """Return whether an owner was a process of this machine that is no more."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    return host == platform.node() and rest.isdigit() and not psutil.pid_exists(int(rest))
