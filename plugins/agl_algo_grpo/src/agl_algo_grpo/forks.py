"""The forks of a step: which calls of its rollouts are repeated and sampled again."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

import numpy as np

from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.credit import to_paths
from agl_algo_grpo.samples import Sample, Step
from agl_core.store import LightningStore
from agl_core.types import EnqueueRolloutRequest
from agl_credit import TurnSpread, choose_forks, forked_advantages

__all__ = ["Forks"]

logger = logging.getLogger(__name__)


class Forks:
    """Chooses the calls to fork, and requests the forks.

    Args:
        store: The store of the rollouts.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.

    Attributes:
        skipped: Number of the chosen calls of the last step that could not be forked, by policy.
    """

    def __init__(self, store: LightningStore, config: GRPOConfig) -> None:
        self.skipped: Counter[str] = Counter()
        self._store = store
        self._config = config
        self._spread: dict[str, TurnSpread] = {}

    async def requests(
        self, step: int, selected: Mapping[str, Step]
    ) -> list[tuple[int, EnqueueRolloutRequest]]:
        """Return requests for the forks of a step, each with the position of its group.

        Several policies take turns, group by group: the calls of one of them are forked.

        Args:
            step: Number of the step.
            selected: Its rollouts by the policy's name.
        """
        credit = self._config.credit
        names = list(selected)
        requests: list[tuple[int, EnqueueRolloutRequest]] = []
        self.skipped.clear()
        for number, name in enumerate(names):
            for group in selected[name].groups:
                if (step + group.index) % len(names) != number:
                    continue
                points = choose_forks(
                    to_paths(group.samples),
                    credit.forks or self._config.group_size,
                    by=credit.choose,
                    rng=np.random.default_rng([self._config.seed, step, group.index]),
                    spread=self._spread.get(name),
                )
                for point in points:
                    forks = await self._fork(group.samples[point.path], point.at)
                    self.skipped[name] += not forks
                    requests += [(group.index, fork) for fork in forks]
        return requests

    async def _fork(self, sample: Sample, at: int) -> list[EnqueueRolloutRequest]:
        """Return requests for forks at a call; none if it cannot be replayed up to there."""
        from agl_replay import NotReplayableError, fork_requests_at

        row, response = sample.calls[at]
        try:
            return await fork_requests_at(
                self._store,
                sample.rollout_id,
                span_id=sample.rows[row].span_ids[response],
                samples=self._config.credit.samples,
            )
        except NotReplayableError as error:
            logger.warning("a call is not forked: %s", error)
            return []

    def learn(self, selected: Mapping[str, Step]) -> None:
        """Note the spread of a finished step, from which later ones choose."""
        for name, step in selected.items():
            spread = self._spread.setdefault(name, TurnSpread())
            for group in step.groups:
                paths = to_paths(group.members)
                spread.update(paths, forked_advantages(paths, weighted=False))
