"""A promotion in a store: its plan, who works on it, its evidence, and its decision.

All of it is one checkpoint, ``promotion:<name>``, which is only ever written by compare-and-set.
The plan comes before the data and is never changed. One process at a time works on a promotion: it
holds a lease that it renews with every write, so one that was cut off and comes back is refused.
Once a promotion is over, the next plan of its name takes its place, and it is kept as
``promotion:<name>:<digest>``.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import anyio
import psutil

from agl_core.errors import ConfigError
from agl_core.ids import generate_id
from agl_core.types import Checkpoint
from agl_promote.evidence import Decision
from agl_promote.plan import LivePlan, Plan, Terms, digest_of
from agl_promote.pointer import LivePointer, require_compare_and_set

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_promote.trial import Trial

__all__ = ["CHECKPOINT", "LEASE_SECONDS", "PREFIX", "Promotion", "label_of"]

P = TypeVar("P", bound=Terms)

LEASE_SECONDS: Final = 60.0
"""How long a promotion belongs to a process that has written nothing."""

CHECKPOINT: Final = "promotion"
"""Name of the checkpoint in its snapshot."""
PREFIX: Final = "promotion:"
"""Start of the ids of promotions."""
_PLANS: Final[Mapping[str, type[Plan] | type[LivePlan]]] = {"experiment": Plan, "live": LivePlan}


class Promotion(Generic[P]):
    """One promotion in a store. For one event loop.

    Args:
        store: The store.
        plan: The plan.
        version: Version of the checkpoint that was read.
        state: Its content.
        label: Names an earlier promotion; by default it is the present one of its name.

    Attributes:
        label: Its name, or of an earlier promotion its :func:`label_of`.
    """

    def __init__(
        self,
        store: LightningStore,
        plan: P,
        version: int,
        state: Mapping[str, Any],
        label: str = "",
    ) -> None:
        self.plan = plan
        self.store = store
        self.label = label or plan.name
        self._version = version
        self._state = dict(state)
        self._owner = f"{platform.node()}:{os.getpid()}:{generate_id(8)}"
        self._writing = anyio.Lock()

    @classmethod
    async def create(cls, store: LightningStore, plan: P) -> Promotion[P]:
        """Store a plan.

        Args:
            store: The store.
            plan: The plan. It takes the place of the promotion of this name that is over, which is
                kept.

        Raises:
            ConfigError: There is a promotion of this name that is not over, or the store cannot
                compare and set.
        """
        require_compare_and_set(store)
        earlier = None
        if await store.get_resources_by_id(PREFIX + plan.name) is not None:
            earlier = await cls.open(store, plan.name)
            await earlier._require_over()
            await earlier._keep()
        plan = plan.model_copy(update={"follows": "" if earlier is None else earlier.digest})
        kind = next(kind for kind, model in _PLANS.items() if isinstance(plan, model))
        stored = plan.model_dump(mode="json")
        state = {
            "kind": kind,
            "plan": stored,
            "digest": digest_of(stored),
            "planned": time.time(),
            "owner": "",
            "until": 0.0,
            "decision": None,
            "pairs": 0,
        }
        promotion = cls(store, plan, 0 if earlier is None else earlier._version, state)
        if not await promotion._write():
            raise ConfigError(
                f"another process has planned or taken the promotion {plan.name!r} meanwhile; show "
                "it"
            )
        return promotion

    @classmethod
    async def open(cls, store: LightningStore, name: str) -> Promotion[Any]:
        """Read a promotion.

        Args:
            store: The store.
            name: Its name, or of an earlier promotion its :func:`label_of`.

        Raises:
            ConfigError: There is none, or its plan was changed.
        """
        stored = await store.get_resources_by_id(PREFIX + name)
        checkpoint = None if stored is None else stored.resources.get(CHECKPOINT)
        if stored is None or not isinstance(checkpoint, Checkpoint):
            raise ConfigError(f"there is no promotion {name!r}; agl promote plan makes one")
        state = checkpoint.state
        if digest_of(state["plan"]) != state["digest"]:
            raise ConfigError(f"the plan of the promotion {name!r} was changed after it was made")
        plan = _PLANS[state["kind"]].model_validate(state["plan"])
        return Promotion(store, plan, stored.version, state, name)

    @property
    def digest(self) -> str:
        """Digest of the plan."""
        return self._state["digest"]

    @property
    def decision(self) -> Decision | None:
        """The final decision, once there is one."""
        stored = self._state["decision"]
        return None if stored is None else Decision(**stored)

    @property
    def pairs(self) -> int:
        """Number of pairs or episodes that were taken into account so far."""
        return self._state.get("pairs") or len(self._state.get("episodes", []))

    def recall(self, key: str, default: Any = None) -> Any:
        """Return something that :meth:`renew` has kept."""
        return self._state.get(key, default)

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Work on the promotion: no other process does while the context is open.

        Raises:
            ConfigError: Another process works on it, or has taken it over.
        """
        await self.acquire()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_lease)
                yield
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self.release()

    async def acquire(self) -> None:
        """Take the promotion for this process, or keep it.

        Raises:
            ConfigError: Another process works on it, or it is an earlier one.
        """
        if self.label != self.plan.name:
            raise ConfigError(f"the promotion {self.label!r} is over; agl promote show shows it")
        self._require_free()
        self._state |= {"owner": self._owner}
        await self.renew()

    def _require_free(self) -> None:
        """Check that no other process works on the promotion."""
        owner = self._state["owner"]
        is_free = owner == self._owner or _is_dead(owner) or self._state["until"] <= time.time()
        if not is_free:
            left = self._state["until"] - time.time()
            raise ConfigError(
                f"another process works on the promotion {self.plan.name!r}; if it was killed, try "
                f"again in {left:.0f} s"
            )

    async def _keep_lease(self) -> None:
        while True:
            await anyio.sleep(LEASE_SECONDS / 3)
            await self.renew()

    async def renew(self, **progress: Any) -> None:
        """Record progress, and keep the lease.

        Raises:
            ConfigError: Another process has taken the promotion.
        """
        self._state |= {**progress, "until": time.time() + LEASE_SECONDS}
        if not await self._write():
            raise ConfigError(f"another process has taken the promotion {self.plan.name!r}")

    async def release(self) -> None:
        """Let another process go on."""
        self._state |= {"owner": "", "until": 0.0}
        await self._write()

    async def decide(self, decision: Decision, then: Trial | None = None, **progress: Any) -> None:
        """Record the final decision; then make the candidate live, or not.

        A process that is killed between the two steps does the second one when it is resumed.

        Args:
            decision: The decision.
            then: As for :meth:`apply`.
            **progress: As for :meth:`renew`.

        Raises:
            ConfigError: Another process has taken the promotion, or the champion is not live any
                more.
        """
        fields = {**decision._asdict(), "guardrails": dict(decision.guardrails)}
        await self.renew(decision=fields, pairs=decision.pairs, **progress)
        await self.apply(then)

    async def apply(self, then: Trial | None = None) -> None:
        """Make the candidate live, if that was decided and not done yet.

        Args:
            then: Trial on live traffic that begins with it.

        Raises:
            ConfigError: What is live was changed since the plan was made.
        """
        plan = self.plan
        live = await LivePointer.read(self.store, plan.name)
        if not self._is_due(live):
            return
        if not self._has_champion(live):
            raise ConfigError(
                f"live:{plan.name} was changed since the plan was made, so its evidence is about "
                "another champion; plan again"
            )
        live = live.beginning_with(plan.champion, self._state["planned"])
        await live.point_to(self.store, plan.candidate, self._why, then)

    def is_applied(self, live: LivePointer) -> bool:
        """Return whether the candidate went live."""
        return self.place_in(live) is not None

    def place_in(self, live: LivePointer) -> int | None:
        """Return where the history of what is live has the candidate; None if it did not go live.

        Args:
            live: What is live under its name.
        """
        whys = [one["why"] for one in live.history]
        return whys.index(self._why) if self._why in whys else None

    def _is_due(self, live: LivePointer) -> bool:
        """Return whether the candidate should have gone live, and did not."""
        decision = self.decision
        return decision is not None and decision.kind == "promote" and not self.is_applied(live)

    def _has_champion(self, live: LivePointer) -> bool:
        """Return whether what is live is still what the candidate has to beat."""
        return live.version == self.recall("live_version", self.plan.champion_version)

    def _is_cut_off(self, live: LivePointer) -> bool:
        """Return whether its trial was ended by hand: it never decides."""
        return self.recall("live_version") is not None and live.trial is None

    async def _require_over(self) -> None:
        """Check that nothing is left to do: the next plan of the name takes its place.

        Raises:
            ConfigError: It has not decided, its candidate is to go live, its trial or its watch is
                on, or another process works on it.
        """
        name = self.plan.name
        live = await LivePointer.read(self.store, name)
        if self.decision is None and not self._is_cut_off(live):
            raise ConfigError(
                f"there is a promotion {name!r} already that has not decided, and a plan cannot be "
                "changed; show it, and run or serve it until it has"
            )
        if live.trial is not None or (self._is_due(live) and self._has_champion(live)):
            raise ConfigError(
                f"there is a promotion {name!r} already that has decided and is not over; show it, "
                "and run or serve it to its end"
            )
        self._require_free()

    async def _keep(self) -> None:
        """Keep it under its digest, unless a process did that was killed before it could plan."""
        state = {**self._state, "owner": "", "until": 0.0}
        kept = PREFIX + label_of(self.plan.name, self.digest)
        await self.store.swap_resources(kept, {CHECKPOINT: Checkpoint(state=state)}, version=0)

    @property
    def _why(self) -> str:
        """What the history of what is live says of this promotion."""
        return f"promotion {self.plan.name} {self.digest}"

    async def _write(self) -> bool:
        async with self._writing:
            stored = await self.store.swap_resources(
                PREFIX + self.label,
                {CHECKPOINT: Checkpoint(state=self._state)},
                version=self._version,
            )
            if stored is not None:
                self._version = stored.version
            return stored is not None


def label_of(name: str, digest: str) -> str:
    """Return what names an earlier promotion beside the present one; a name has no colon."""
    return f"{name}:{digest[:12]}"


def _is_dead(owner: str) -> bool:
    """Return whether an owner was a process of this machine that is no more."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    return host == platform.node() and rest.isdigit() and not psutil.pid_exists(int(rest))
