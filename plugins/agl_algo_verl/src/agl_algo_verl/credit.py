"""Credit by turn: the advantages of a group's tokens, and the forks that some of it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agl_algo_verl.decisions import Decision
from agl_algo_verl.rows import Call
from agl_core.store import LightningStore
from agl_core.types import EnqueueRolloutRequest
from agl_credit import (
    CreditConfig,
    ForkPoint,
    Path,
    TurnSpread,
    call_advantages,
    choose_forks,
    forked_advantages,
)

__all__ = ["Branch", "Forks", "spreads", "to_paths", "token_advantages"]


@dataclass(frozen=True, slots=True)
class Branch:
    """A usable rollout of a group, or a usable fork of one.

    Attributes:
        session: Its number in the group; forks come after the rollouts.
        rollout_id: Id of the rollout.
        decision: The decision on it.
        point: What it is a fork of; None for a rollout.
    """

    session: int
    rollout_id: str
    decision: Decision
    point: ForkPoint | None = None

    @property
    def calls(self) -> list[tuple[int, Call]]:
        """Its own calls in order, each with the index of its row."""
        found = [(i, call) for i, row in enumerate(self.decision.rows) for call in row.calls]
        return sorted(found, key=lambda place: place[1].order)


def to_paths(group: Sequence[Branch]) -> list[Path]:
    """Return the paths of a group; forks come after their parents."""
    paths: list[Path] = []
    for branch in group:
        point = branch.point
        before = () if point is None else paths[point.path].turns[: point.at]
        turns = (*before, *(call.turn for _, call in branch.calls))
        parent = None if point is None else point.path
        decision = branch.decision
        paths.append(Path(decision.reward, turns, decision.rewards, parent, len(before)))
    return paths


def token_advantages(
    group: Sequence[Branch], credit: CreditConfig, *, normalise: bool
) -> list[list[list[float]]]:
    """Return the advantage of each response token, by branch and row; 0 if it was not sampled."""
    paths = to_paths(group)
    advantages = call_advantages(paths, credit, normalise=normalise)
    found: list[list[list[float]]] = []
    for branch, path, of_calls in zip(group, paths, advantages, strict=True):
        of_rows = [[0.0] * len(row.response_ids) for row in branch.decision.rows]
        for (i, call), advantage in zip(branch.calls, of_calls[path.at :].tolist(), strict=True):
            of_rows[i][call.start : call.end] = [advantage] * (call.end - call.start)
        found.append(of_rows)
    return found


def spreads(
    group: Sequence[Branch], advantages: Sequence[Sequence[Sequence[float]]]
) -> list[float]:
    """Return how far the advantages of each branch's own calls are apart; 0 if they are equal."""
    found: list[float] = []
    for branch, of_rows in zip(group, advantages, strict=True):
        of_calls = [of_rows[i][call.start] for i, call in branch.calls]
        found.append(max(of_calls) - min(of_calls))
    return found


class Forks:
    """Chooses the calls of finished groups to fork, and requests the forks.

    Args:
        store: The store of the rollouts.
        credit: The budget.
    """

    def __init__(self, store: LightningStore, credit: CreditConfig) -> None:
        self._store = store
        self._credit = credit
        self._spread = TurnSpread()

    async def requests(
        self, group: Sequence[Branch], seed: Sequence[int]
    ) -> list[tuple[ForkPoint, EnqueueRolloutRequest]]:
        """Return requests for the forks of a group, each with its point.

        Args:
            group: The usable rollouts.
            seed: Seed of the choice.
        """
        from agl_replay import fork_requests_at

        points = choose_forks(
            to_paths(group),
            self._credit.forks or len(group),
            by=self._credit.choose,
            rng=np.random.default_rng(seed),
            spread=self._spread,
        )
        requests: list[tuple[ForkPoint, EnqueueRolloutRequest]] = []
        for point in points:
            _, call = group[point.path].calls[point.at]
            forks = await fork_requests_at(
                self._store,
                group[point.path].rollout_id,
                span_id=call.span_id,
                samples=self._credit.samples,
            )
            requests += [(point, fork) for fork in forks]
        return requests

    def learn(self, group: Sequence[Branch]) -> None:
        """Note the spread of a finished group, from which later choices are made."""
        paths = to_paths(group)
        self._spread.update(paths, forked_advantages(paths, weighted=False))
