"""A promotion on live traffic: a trial, its decision, and a watch over what went live.

The traffic is somebody else's: agents enqueue and run it, with ``resources_id="live:<name>"``.
:mod:`agl_promote.trial` assigns each episode when it is enrolled, also while no process serves the
promotion. This module reads the rewards. Episodes count in the order of their enrolment, up to the
first that is still open: a version whose failures take longer must not look better meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from agl_core.algorithm import show_progress
from agl_core.errors import ConfigError
from agl_core.types import FINISHED_STATUSES, Rollout
from agl_promote.episodes import Episode
from agl_promote.evidence import Decision, Evidence
from agl_promote.plan import LivePlan
from agl_promote.pointer import LivePointer
from agl_promote.promotion import Promotion, label_of
from agl_promote.rewards import RewardReader, segment_of
from agl_promote.trial import HOLDBACK, LIVE, Trial

if TYPE_CHECKING:
    from agl_core.store import LightningStore

__all__ = ["LiveTrial", "WatchState", "trials_of", "watch_state"]

logger = logging.getLogger(__name__)

_PAGE: Final = 1000
"""Rollouts per query: one round trip for the traffic of minutes."""
_OVERLAP: Final = 200
"""Rollouts that are read again: on a shared database one may appear before those that were read."""


WatchState = Literal["on", "kept", "rolled back", "ended"]
"""Of the watch after a promotion. ``kept``: it is over, and the old version was not shown to be
better. ``ended``: what is live was changed, so the watch neither keeps nor rolls back."""


class LiveTrial:
    """Runs the promotion of a :class:`~agl_promote.plan.LivePlan`.

    Killed at any time, it goes on from the store. Each episode's reward is kept in the promotion,
    so the same episodes decide the same again.

    Args:
        promotion: What to decide.
        look_seconds: Seconds between two looks for new episodes and late rewards.
    """

    def __init__(self, promotion: Promotion[LivePlan], look_seconds: float = 2.0) -> None:
        self._promotion = promotion
        self._look_seconds = look_seconds
        self._trial, self._holdback = trials_of(promotion)

    async def run(self) -> None:
        """Follow the traffic until the decision; after a promotion, until the watch is over.

        Raises:
            ConfigError: Another process works on the promotion, or what is live was changed.
            InvalidArgumentError: A reward is outside the declared range.
        """
        promotion, plan = self._promotion, self._promotion.plan
        then = self._holdback if plan.watch else None
        async with promotion.held():
            if promotion.decision is None:
                await self._begin()
                first = promotion.recall("first")
                decision, rows = await self._follow(plan, self._trial, "episodes", first)
                watched_from = await _count(promotion.store)
                await promotion.decide(decision, then, episodes=rows, watch_first=watched_from)
            else:
                await promotion.apply(then)
            if then is not None and promotion.decision and promotion.decision.kind == "promote":
                await self._watch()
            await self._end(self._trial)

    async def _begin(self) -> None:
        """Begin the trial, unless it is on already."""
        promotion, plan = self._promotion, self._promotion.plan
        live = await LivePointer.read(promotion.store, plan.name)
        if live.trial != self._trial:
            if live.version != plan.champion_version or promotion.recall("live_version"):
                raise _changed(plan.name)
            if promotion.recall("first") is None:
                await promotion.renew(first=await _count(promotion.store))
            live = live.beginning_with(plan.champion, time.time())
            live = await live.try_out(promotion.store, self._trial)
        await promotion.renew(live_version=live.version)

    async def _watch(self) -> None:
        """Roll back if the old version is shown to be better than what went live."""
        promotion, plan = self._promotion, self._promotion.plan
        if promotion.recall("watch") is None:
            first, terms = promotion.recall("watch_first"), plan.of_holdback()
            verdict, rows = await self._follow(terms, self._holdback, "watched", first)
            await promotion.renew(watch=_as_state(verdict), watched=rows)
        live = await LivePointer.read(promotion.store, plan.name)
        if live.trial == self._holdback and promotion.recall("watch")["kind"] == "promote":
            await live.roll_back(promotion.store, _why_back(plan))
        await self._end(self._holdback)

    async def _end(self, trial: Trial) -> None:
        live = await LivePointer.read(self._promotion.store, trial.name)
        if live.trial == trial:
            await live.try_out(self._promotion.store, None)

    async def _follow(
        self, plan: LivePlan, trial: Trial, key: str, first: int
    ) -> tuple[Decision, list[Any]]:
        """Take episodes until the evidence for a plan decides.

        Args:
            plan: The plan.
            trial: Its trial.
            key: Where the promotion keeps the episodes that count.
            first: Number of rollouts that the store had before the trial.

        Returns:
            The decision, and the episodes: rollout id, whether the plan's candidate ran it, its
            reward, and those that are guarded.
        """
        promotion = self._promotion
        rows: list[Any] = list(promotion.recall(key, []))
        evidence: Evidence[LivePlan] = Evidence(plan)
        for _, *fields in rows:
            evidence.add(Episode(*fields))
        queue = _Queue(promotion.store, trial, first, {row[0] for row in rows})
        reader = RewardReader(plan)
        words = "watch over" if trial == self._holdback else "live trial"
        with show_progress(f"{words} {plan.name}", plan.most) as progress:
            while evidence.decision.kind == "undecided":
                await queue.look()
                known = len(rows)
                head = queue.head
                while head and evidence.decision.kind == "undecided":
                    head = await self._renewed(head)
                    row = await self._row(plan, head, reader)
                    if row is None:
                        break
                    rows.append(row)
                    evidence.add(Episode(*row[1:]))
                    head = queue.pop()
                progress.update(len(rows), f"gain {evidence.decision.gain:+.3f}")
                if evidence.decision.kind == "undecided":
                    if len(rows) > known:
                        await promotion.renew(**{key: rows})
                    await self._wait_for(head)
                await self._require(trial)
        return evidence.decision, rows

    async def _require(self, trial: Trial) -> None:
        """Check that a trial is on: its evidence is about what was live when it began."""
        live = await LivePointer.read(self._promotion.store, trial.name)
        if live.trial != trial:
            raise _changed(trial.name)

    async def _renewed(self, rollout: Rollout) -> Rollout:
        return await self._promotion.store.get_rollout_by_id(rollout.rollout_id) or rollout

    async def _row(
        self, plan: LivePlan, rollout: Rollout, reader: RewardReader
    ) -> list[Any] | None:
        """Return the row of an episode; None if the episode is open."""
        limit = rollout.start_time + plan.deadline
        reward: float | None = None
        others: Mapping[str, float] = {}
        if rollout.status not in ("failed", "cancelled"):
            spans = (await self._promotion.store.query_spans(rollout.rollout_id, "latest")).items
            # Also a reward that a killed process would have seen later: when it came decides.
            in_time = [span for span in spans if (span.start_time or 0.0) <= limit]
            reward, others = reader.read(rollout.rollout_id, in_time)
            if time.time() < limit and (reward is None or rollout.status not in FINISHED_STATUSES):
                return None
        if reward is None:
            reward, others = reader.lowest()
        segments = (rail.path for rail in plan.guardrails if rail.path.startswith("input."))
        own = [one for one in segments if segment_of(rollout.input, one.partition("=")[0]) == one]
        is_candidate = rollout.resources_id == plan.candidate
        return [rollout.rollout_id, is_candidate, reward, {**others, **dict.fromkeys(own, reward)}]

    async def _wait_for(self, head: Rollout | None) -> None:
        """Wait for the end of an episode, or until the next look: a late reward has no event."""
        if head is not None and head.status not in FINISHED_STATUSES:
            await self._promotion.store.wait_for_rollouts(
                rollout_ids=[head.rollout_id], timeout=self._look_seconds
            )
        else:
            await anyio.sleep(self._look_seconds)


class _Queue:
    """The episodes of a trial in the order of their enrolment, without those that count already.

    Of several rollouts of one episode the first one counts: they have the same version, so they are
    not independent.
    """

    def __init__(self, store: LightningStore, trial: Trial, first: int, counted: set[str]) -> None:
        self._store, self._trial = store, trial
        self._first = self._next = first
        self._last: str | None = None
        """The rollout that was read last."""
        self._counted = counted
        self._known: dict[str, str] = {}
        """Rollout by episode."""
        self._open: deque[Rollout] = deque()
        self._since = time.time()
        self._warned = False

    @property
    def head(self) -> Rollout | None:
        """The first episode that is open."""
        return self._open[0] if self._open else None

    def pop(self) -> Rollout | None:
        """Remove the head; return the next one."""
        self._open.popleft()
        return self.head

    async def look(self) -> None:
        """Find new episodes."""
        if not await self._read(max(self._first, self._next - _OVERLAP)):
            self._first = 0  # rollouts were dropped from the store: offsets mean others now
            await self._read(0)

    async def _read(self, offset: int) -> bool:
        """Take the rollouts from an offset on; return whether the last one of before is there."""
        before, is_there = self._last, self._last is None
        total = offset + 1
        while offset < total:
            page = await self._store.query_rollouts(limit=_PAGE, offset=offset)
            for rollout in page:
                is_there = is_there or rollout.rollout_id == before
                self._last = rollout.rollout_id
                self._take(rollout)
            offset, total = offset + len(page), page.total if len(page) else offset
        self._next = offset
        return is_there

    def _take(self, rollout: Rollout) -> None:
        episode = self._trial.episode_of(rollout)
        if episode is None:
            self._warn_about(rollout)
        elif episode not in self._known:
            self._known[episode] = rollout.rollout_id
            if rollout.rollout_id not in self._counted:
                self._open.append(rollout)

    def _warn_about(self, rollout: Rollout) -> None:
        is_traffic = rollout.resources_id == LIVE + self._trial.name and rollout.mode is None
        if is_traffic and rollout.start_time > self._since and not self._warned:
            self._warned = True
            logger.warning(
                "%s is live traffic without a part in the trial: the process that opens its store "
                "needs agl-promote, and with_installed(store) if it is not a store server",
                rollout.rollout_id,
            )


def watch_state(promotion: Promotion[LivePlan], live: LivePointer) -> WatchState | None:
    """Return the state of the watch over what a promotion made live; None if there is no watch.

    Args:
        promotion: The promotion.
        live: What is live under its name.
    """
    place = promotion.place_in(live)
    if not promotion.plan.watch or place is None:
        return None
    _, holdback = trials_of(promotion)
    if live.trial == holdback:
        return "on"
    # The next change, since it ends the watch. Later ones may be of another promotion.
    if any(one["why"] == _why_back(promotion.plan) for one in live.history[place + 1 : place + 2]):
        return "rolled back"
    verdict = promotion.recall("watch")
    return "kept" if verdict is not None and verdict["kind"] == "keep" else "ended"


def trials_of(promotion: Promotion[LivePlan]) -> tuple[Trial, Trial]:
    """Return the trial of a promotion, and the one in which a holdback stays on the old version."""
    plan, label = promotion.plan, label_of(promotion.plan.name, promotion.digest)
    trial = Trial(plan.name, label, plan.champion, plan.candidate, plan.share)
    return trial, trial._replace(id=label + HOLDBACK, share=1 - plan.holdback)


def _why_back(plan: LivePlan) -> str:
    """Return what the history of what is live says of a roll-back by the watch."""
    return f"rolled back: {plan.champion} is shown to be better"


async def _count(store: LightningStore) -> int:
    return (await store.query_rollouts(limit=0)).total


def _as_state(decision: Decision) -> dict[str, Any]:
    return {**decision._asdict(), "guardrails": dict(decision.guardrails)}


def _changed(name: str) -> ConfigError:
    return ConfigError(
        f"live:{name} was changed meanwhile, so the evidence is about another champion; plan again"
    )
