"""Rollouts of candidates, their rewards, and what was seen in them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import anyio

from agl_adapters import TraceToMessages
from agl_algo_gepa.recorder import Recorder
from agl_algo_gepa.state import Candidate, digest
from agl_algorithm_kit import run_batch
from agl_core.algorithm import BatchOutcome
from agl_core.errors import RunFailedError
from agl_core.store import LightningStore
from agl_core.types import Dataset
from agl_prompt_search import ConversationCheck, Experiment, Snapshots, describe

__all__ = ["Measurements", "Row"]

logger = logging.getLogger(__name__)

Split = Literal["train", "val"]


class Row(NamedTuple):
    """A task, as the engine refers to it."""

    split: Split
    index: int


class _Batch(NamedTuple):
    """Rollouts of one candidate."""

    name: str
    candidate: Candidate
    rows: Sequence[Row]


class Measurements:
    """Measures each candidate at most once on a task.

    For one event loop and one call at a time.

    Args:
        recorder: Keeps the candidates and their rewards.
        store: Store of the rollouts.
        adapter: Turns spans into conversations.
        train: Training tasks, to reflect on.
        val: Validation tasks, to score candidates on.
        snapshots: Resources of the agent, by version.
        timeout: Seconds for a batch of rollouts.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        store: LightningStore,
        adapter: TraceToMessages,
        train: Dataset[Any],
        val: Dataset[Any],
        snapshots: Snapshots,
        timeout: float,
    ) -> None:
        self._recorder = recorder
        self._state = recorder.state
        self._store = store
        self._adapter = adapter
        self._conversations = ConversationCheck("GEPA", adapter)
        self._tasks: Mapping[Split, Dataset[Any]] = {"train": train, "val": val}
        self._snapshots = snapshots
        self._timeout = timeout
        self._rewards: dict[tuple[str, Row], float | None] = {}
        self._seen: dict[tuple[str, Row], tuple[Experiment, str]] = {}
        self._batches: list[_Batch] = []

    async def rewards(
        self, items: Sequence[tuple[Mapping[str, str], Sequence[Row]]]
    ) -> list[list[float]]:
        """Return the rewards of candidates on rows; known rewards are not measured again.

        Failures are None until :meth:`counted` counts them.

        Args:
            items: Prompts, and the rows to run them on; all of them run concurrently.
        """
        wanted: dict[tuple[str, Split], dict[Row, None]] = {}
        versions: list[str] = []
        for prompts, rows in items:
            # Unknown prompts are a merge of candidates, made by the engine.
            candidate = self._state.with_prompts(prompts) or self._recorder.new_candidate(prompts)
            versions.append(candidate.version)
            for row in rows:
                if (candidate.version, row) not in self._rewards:
                    wanted.setdefault((candidate.version, row.split), {})[row] = None
        batches: list[_Batch] = []
        for (version, split), rows in wanted.items():
            candidate = self._state.candidate(version)
            name = self._recorder.entry(
                f"{version}-{split}-{digest(candidate.prompts, list(rows))}",
                f"{version}-{split}-{len(self._batches) + len(batches)}",
                self._state.journal.rewards,
            )
            batches.append(_Batch(name, candidate, list(rows)))
        self._batches += batches
        async with anyio.create_task_group() as group:
            for batch in batches:
                group.start_soon(self._measure, batch, len(batches))
        return [
            self.counted(version, rows) for version, (_, rows) in zip(versions, items, strict=True)
        ]

    def counted(self, version: str, rows: Sequence[Row]) -> list[float]:
        """Return known rewards, with failures as what they count on the present scale."""
        return self._state.scale.counted(self._rewards[version, row] for row in rows)

    async def _measure(self, batch: _Batch, concurrent: int) -> None:
        known = self._state.journal.rewards.get(batch.name)
        if known is None:
            self._recorder.end_replay()
            outcomes = await self._roll_out(batch, concurrent)
            self._require_all(batch, outcomes)
            self._conversations.look_at(outcomes)
            self._state.look_at(outcomes)
            known = [outcome.earned for outcome in outcomes]
            self._keep_experiments(batch, outcomes)
            self._state.journal.rewards[batch.name] = known
        for row, reward in zip(batch.rows, known, strict=True):
            self._rewards[batch.candidate.version, row] = reward
            if row.split == "val":
                batch.candidate.record(row.index, reward)
        self._state.scale.learn(known)
        self._state.recount()
        self._state.count_batch(batch.name, len(batch.rows))
        await self._recorder.save()
        if batch.rows[0].split == "val":
            tell = self._recorder.reporter.measured
            self._recorder.tell(tell, batch.candidate, sorted(batch.candidate.rewards))

    async def _roll_out(self, batch: _Batch, concurrent: int = 1) -> BatchOutcome:
        split = batch.rows[0].split
        return await run_batch(
            self._store,
            [self._tasks[split][row.index] for row in batch.rows],
            resources=await self._snapshots.get(batch.candidate.version),
            mode=split,
            # Concurrent batches share the runners, so each gets more time.
            timeout=self._timeout * concurrent,
            description=f"{batch.candidate.version} {split}",
            run=self._recorder.run,
            name=batch.name,
        )

    def _require_all(self, batch: _Batch, outcomes: BatchOutcome) -> None:
        """Check that the infrastructure failed no rollout.

        Raises:
            RunFailedError: It did. The library needs a score for each row, and these rollouts say
                nothing about the prompt. A resumed run measures them again.
        """
        lost = [one.infrastructure for one in outcomes if one.infrastructure is not None]
        if lost:
            again = "resume the run" if self._recorder.run.name else "start again, with a run name"
            raise RunFailedError(
                f"{len(lost)} of {len(outcomes)} rollouts of {batch.candidate.version} failed by "
                f"the {lost[0]}, also when they were repeated; once it works, {again}"
            )

    def _keep_experiments(self, batch: _Batch, outcomes: BatchOutcome) -> None:
        for row, outcome in zip(batch.rows, outcomes, strict=True):
            if row.split == "train":
                seen = describe(outcome, self._adapter), outcome.rollout.rollout_id
                self._seen[batch.candidate.version, row] = seen

    async def load_experiments(self, version: str, rows: Sequence[Row]) -> None:
        """Load the rollouts of training rows that an earlier process made.

        Their rewards are known. What the store lost of them since is missing in what is shown.
        """
        missing = {row for row in rows if (version, row) not in self._seen}
        for batch in self._batches:
            if batch.candidate.version == version and missing.intersection(batch.rows):
                try:
                    outcomes = await self._roll_out(batch)
                except RunFailedError as error:
                    logger.warning("%s is shown without conversations: %s", batch.name, error)
                    self._keep_rewards(batch)
                else:
                    self._conversations.look_at(outcomes)
                    self._keep_experiments(batch, outcomes)

    def _keep_rewards(self, batch: _Batch) -> None:
        for row in batch.rows:
            reward = self._rewards[batch.candidate.version, row]
            experiment = Experiment(
                status="failed" if reward is None else "succeeded",
                final_reward=reward,
                messages=[],
                conversation="",
                feedback=[],
                spans=[],
            )
            self._seen[batch.candidate.version, row] = experiment, ""

    def experiments(self, version: str, rows: Sequence[Row]) -> list[tuple[Experiment, str]]:
        """Return what a candidate did on training rows, each with the id of its rollout.

        Raises:
            KeyError: A row was neither measured by this process nor loaded.
        """
        return [self._seen[version, row] for row in rows]
