"""A trial on live traffic: each episode gets one of two snapshots when it is enrolled.

While a trial is on, ``live:<name>`` holds it, and :class:`LiveAssignment` replaces
``resources_id="live:<name>"`` of new rollouts by the id of one of the two. It is in front of the
store of every run and of every store server where this package is installed; a program that opens
a store itself uses :func:`agl_core.store.with_installed`. Rollouts with a mode (train, val, test)
are not traffic: they get what is live.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from agl_core.store import (
    Interceptor,
    Method,
    Next,
    StoreCall,
    current_request_key,
    id_from_key,
)
from agl_core.types import Checkpoint

if TYPE_CHECKING:
    from agl_core.types import EnqueueRolloutRequest, ResourcesUpdate, Rollout

__all__ = ["HOLDBACK", "LIVE", "LIVE_KEY", "LiveAssignment", "Trial"]

LIVE: Final = "live:"
"""Start of the ids of what is live."""
LIVE_KEY: Final = "live"
"""Name of the checkpoint there."""
HOLDBACK: Final = ":holdback"
"""End of the id of the trial after a promotion."""
_TRIAL, _EPISODE = "trial", "episode"  # keys of the metadata of rollouts


class Trial(NamedTuple):
    """Two snapshots that share the live traffic of a name.

    Attributes:
        name: The name.
        id: Unique among the trials of a store; a label of its rollouts.
        champion: Id of one snapshot.
        candidate: Id of the other.
        share: Probability of the candidate.
    """

    name: str
    id: str
    champion: str
    candidate: str
    share: float

    @classmethod
    def in_snapshot(cls, stored: ResourcesUpdate | None) -> Trial | None:
        """Return the trial that a snapshot ``live:<name>`` holds."""
        checkpoint = None if stored is None else stored.resources.get(LIVE_KEY)
        if not isinstance(checkpoint, Checkpoint) or not checkpoint.state.get(_TRIAL):
            return None
        return cls(**checkpoint.state[_TRIAL])

    def enrol(self, metadata: Mapping[str, Any] | None, unique: str) -> tuple[str, dict[str, Any]]:
        """Return the snapshot of a new rollout, and its metadata.

        Args:
            metadata: Its metadata; rollouts with equal ``episode`` get the same snapshot.
            unique: Its episode without one.
        """
        from agl_promote.episodes import assigned_to_candidate

        given = dict(metadata or {})
        episode = str(given.setdefault(_EPISODE, unique))
        # The holdback assigns as the trial before it did: an episode that goes on keeps its version
        # wherever the shares allow it.
        seed = self.id.removesuffix(HOLDBACK)
        is_candidate = assigned_to_candidate(seed, episode, self.share)
        return self.candidate if is_candidate else self.champion, {**given, _TRIAL: self.id}

    def episode_of(self, rollout: Rollout) -> str | None:
        """Return the episode of a rollout; None if the rollout is not of this trial."""
        labels = rollout.metadata or {}
        return str(labels[_EPISODE]) if labels.get(_TRIAL) == self.id else None


class LiveAssignment(Interceptor):
    """Enrols rollouts in the trials of what they want to run with."""

    watches = ("enqueue_rollout", "enqueue_many_rollouts", "start_rollout")
    travels: ClassVar[bool] = False  # the process that a store arrives in has its own

    def wrap(self, name: str, method: Method, next: Next) -> Method:
        """See the base. Only calls that name something live take the time of :meth:`around`."""
        entry = super().wrap(name, method, next)

        def unless_live(*args: Any, **kwargs: Any) -> Any:
            is_live = any(map(_is_live, kwargs.values())) or any(map(_is_live, args))
            return (entry if is_live else method)(*args, **kwargs)

        def unless_any_live(*args: Any, **kwargs: Any) -> Any:
            batch: Sequence[EnqueueRolloutRequest] = args[0] if args else kwargs.get("rollouts", ())
            is_live = any(_is_live(request.resources_id) for request in batch)
            return (entry if is_live else method)(*args, **kwargs)

        return unless_any_live if name == "enqueue_many_rollouts" else unless_live

    async def around(self, call: StoreCall, next: Next) -> Any:
        """See the class; other rollouts pass."""
        if call.name == "enqueue_many_rollouts":
            return await self._around_many(call, next)
        wanted = call.argument("resources_id")
        is_traffic = _is_traffic(call.argument("mode"), wanted)
        trial = await _trial_at(wanted, next) if is_traffic else None
        if trial is None:
            return await next(call)
        snapshot, labels = trial.enrol(call.argument("metadata"), _unique())
        return await next(call.replace(resources_id=snapshot, metadata=labels))

    async def _around_many(self, call: StoreCall, next: Next) -> Any:
        given: Sequence[EnqueueRolloutRequest] = call.argument("rollouts")
        traffic = {
            place: request.resources_id
            for place, request in enumerate(given)
            if _is_traffic(request.mode, request.resources_id)
        }
        trials = {
            wanted: await _trial_at(wanted, next) for wanted in dict.fromkeys(traffic.values())
        }
        if not any(trials.values()):
            return await next(call)
        requests = list(given)
        for place, wanted in traffic.items():
            if trial := trials[wanted]:
                snapshot, labels = trial.enrol(given[place].metadata, _unique(place))
                update = {"resources_id": snapshot, "metadata": labels}
                requests[place] = given[place].model_copy(update=update)
        return await next(call.replace(rollouts=requests))


def _is_live(value: object) -> bool:
    return isinstance(value, str) and value.startswith(LIVE)


def _is_traffic(mode: object, resources_id: object) -> bool:
    return mode is None and _is_live(resources_id)


async def _trial_at(resources_id: str | None, next: Next) -> Trial | None:
    """Return the trial that a snapshot ``live:<name>`` holds, if there is one."""
    return Trial.in_snapshot(await next(StoreCall.of("get_resources_by_id", resources_id)))


def _unique(place: int = 0) -> str:
    """Return the id of a new episode, the same if the call is repeated after a lost reply."""
    key = current_request_key.get()
    return secrets.token_hex(8) if key is None else id_from_key("ep-", key, place)
