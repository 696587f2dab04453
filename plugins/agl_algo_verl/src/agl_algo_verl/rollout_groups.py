"""Runs groups of rollouts for the trainer's prompts, and publishes their rows.

One prompt is one group: ``rollout.n`` rollouts of one task. Groups run in the algorithm's event
loop. The trainer, in a thread of its own, submits prompts (:mod:`agl_algo_verl.bridge`) and reads
rows from its queue.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import anyio
from anyio import to_thread

from agl_adapters import sampling_advice
from agl_algo_verl.config import VERLConfig
from agl_algo_verl.counting import ALWAYS, Tally
from agl_algo_verl.credit import Branch, Forks, spreads, token_advantages
from agl_algo_verl.decisions import FAILURE, Decision, Limits, decide
from agl_algo_verl.rows import Row, RowBuilder
from agl_algorithm_kit import cancel_rollouts
from agl_core.algorithm import RewardScale, Run
from agl_core.emitter import find_final_reward
from agl_core.errors import AgentError, RunFailedError
from agl_core.store import LightningStore
from agl_core.sync_calls import SyncCalls
from agl_core.types import Dataset, EnqueueRolloutRequest, Rollout, RolloutConfig
from agl_credit import named_rewards

__all__ = ["GroupRow", "GroupRunner", "GroupSettings", "Prompt", "Publisher"]

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 2.0
"""Longest wait before ended rollouts are examined, and retried if needed, while others run."""
_READERS = 8
"""Rollouts whose spans are read at a time: more do not make one store faster."""
_TEMPERATURE = "config.actor_rollout_ref.rollout.temperature"
"""The option of the temperature that verl trains."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of the trainer: a task for a group of rollouts.

    Attributes:
        uid: The trainer's id of the group; unique.
        index: Index of the task in its dataset.
        step: Training step, from 1; 0 is the validation before the first step.
        validate: Whether the task is from the validation dataset.
    """

    uid: str
    index: int
    step: int
    validate: bool = False

    @property
    def partition(self) -> str:
        """Name of the dataset in verl."""
        return "val" if self.validate else "train"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A row with its position in the group.

    Attributes:
        session: Index of its rollout in the group.
        index: Index of the row in its rollout.
        row: The row.
        reward: Reward of its rollout.
        turns: Number of model calls of the rollout.
        advantages: Advantage of each response token; None leaves them to verl's estimator.
    """

    session: int
    index: int
    row: Row
    reward: float
    turns: int
    advantages: Sequence[float] | None = None


class Publisher(Protocol):
    """Writes rows for the trainer; called in worker threads."""

    def begin(self, prompt: Prompt) -> None:
        """Record that a group is running."""
        ...

    def end(self, prompt: Prompt, rows: Sequence[GroupRow], *, usable: bool) -> None:
        """Write the rows of a group; an unusable group has none."""
        ...

    def placeholder(self) -> Row:
        """Return a row for a validation rollout without rows."""
        ...


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings from verl's configuration.

    Attributes:
        n_train: Rollouts per training task.
        n_val: Rollouts per validation task.
        limits: Limits of rows.
        batch: Prefix of the names of batches, unique in the run.
        tasks: Training tasks of a step.
        sampling: Sampling parameters of training: ``temperature``, and ``top_p`` if it is not 1.
        normalise: Whether credit by turn divides by a standard deviation.
    """

    n_train: int
    n_val: int
    limits: Limits
    batch: str
    tasks: int
    sampling: Mapping[str, float]
    normalise: bool = True


class _FirstStep:
    """The groups of the first step so far, and why their rollouts cannot be trained on.

    Attributes:
        groups: Number of groups.
        is_useless: Whether all their rollouts are excluded for reasons that last.
        reasons: Number of rollouts by reason.
        otherwise: Number of rollouts by how their calls were sampled, if not as in training.
    """

    def __init__(self) -> None:
        self.groups = 0
        self.is_useless = True
        self.reasons: Counter[str] = Counter()
        self.otherwise: Counter[str] = Counter()

    def add(self, decisions: Sequence[Decision]) -> None:
        """Add a group."""
        self.groups += 1
        for decision in decisions:
            if decision.reason is None or not decision.reason.is_lasting:
                self.is_useless = False
            self.reasons[str(decision.reason)] += 1
            if decision.otherwise:
                self.otherwise[", ".join(decision.otherwise)] += 1


class GroupRunner:
    """Runs groups of rollouts.

    Args:
        store: Store of the rollouts.
        run: Run that they belong to; it has a name.
        options: Options of the algorithm.
        settings: See :class:`GroupSettings`.
        datasets: Tasks by partition.
        resources: Id of the resources by partition.
        builder: Makes rows of spans.
        publisher: Writes rows for the trainer.
        changed: Called whenever a group has ended, in any thread.
        suspect: Called in the event loop after a failed rollout, because a server may be down.
    """

    def __init__(
        self,
        store: LightningStore,
        run: Run,
        options: VERLConfig,
        settings: GroupSettings,
        *,
        datasets: Mapping[str, Dataset[Any]],
        resources: Mapping[str, str],
        builder: RowBuilder,
        publisher: Publisher,
        changed: Callable[[], None],
        suspect: Callable[[], None],
    ) -> None:
        self._store = store
        self._run = run
        self._options = options
        self._settings = settings
        self._datasets = datasets
        self._resources = resources
        self._builder = builder
        self._publisher = publisher
        self._changed = changed
        self._suspect = suspect
        self._forks = Forks(store, options.credit) if options.credit.type == "forked" else None
        self._readers = anyio.CapacityLimiter(_READERS)
        self._open: set[str] = set()
        # A queue whose process died may never answer; these threads can be abandoned then.
        self._queue_calls = SyncCalls("agl-verl-queue")
        self._failed_groups = 0
        self._first_step = _FirstStep()
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {"train": Counter(), "val": Counter()}
        self._rewards: dict[str, list[float]] = {"train": [], "val": []}
        self._spreads: list[float] = []

    async def cancel(self) -> None:
        """Cancel unfinished rollouts."""
        await cancel_rollouts(self._store, sorted(self._open))
        self._open.clear()
        self._queue_calls.close()

    def take_metrics(self, partition: str) -> dict[str, float]:
        """Return the counts since the last call; may be called from any thread."""
        with self._lock:
            counts, self._counts[partition] = self._counts[partition], Counter()
            rewards, self._rewards[partition] = self._rewards[partition], []
            apart: list[float] = []
            if partition == "train":
                apart, self._spreads = self._spreads, []
        prefix = "agl/" if partition == "train" else "agl/val_"
        metrics = {prefix + name: float(counts[name]) for name in sorted({*counts, *ALWAYS})}
        reference = "training" if partition == "train" else "val"
        metrics[f"{reference}/n_rollouts"] = float(counts["rollouts"])
        metrics[f"{reference}/n_rollouts_w_trace"] = float(counts["rollouts_with_rows"])
        metrics[f"{reference}/n_rollouts_w_reward"] = float(counts["rollouts_with_reward"])
        if rewards:
            metrics[f"{reference}/reward"] = sum(rewards) / len(rewards)
        if apart:
            metrics["agl/credit_spread"] = sum(apart) / len(apart)
        return metrics

    # -- one group -------------------------------------------------------------------------------

    async def run_group(self, prompt: Prompt) -> None:
        """Run the rollouts of a task and publish their rows.

        Raises:
            RunFailedError: The agent or the configuration excludes every rollout of the first step.
            AgentError: Too many groups in a row had no usable rollout.
        """
        tally = Tally()
        await self._publish(lambda: self._publisher.begin(prompt))
        n = self._settings.n_val if prompt.validate else self._settings.n_train
        ended = await self._rollouts(prompt, [self._request(prompt)] * n, tally)
        decisions = [decision for _, decision in ended]
        branches = [
            Branch(session, rollout_id, decision)
            for session, (rollout_id, decision) in enumerate(ended)
            if decision.action == "keep"
        ]
        if prompt.validate:
            usable = True
        else:
            usable = self._is_usable(prompt, decisions, len(branches), tally)
            if usable and self._forks is not None:
                branches += await self._run_forks(self._forks, prompt, branches, tally)
        rows = self._rows(branches, prompt, tally)
        if prompt.validate:
            rows += [
                GroupRow(session, 0, self._publisher.placeholder(), decision.reward, 0)
                for session, decision in enumerate(decisions)
                if decision.action != "keep"
            ]
        else:
            tally.count(**{"rows" if usable else "rows_dropped_with_group": len(rows)})
        self._add(prompt.partition, tally)
        if prompt.step == 1 and not prompt.validate:
            self._check_use(decisions)
        if self._failed_groups >= self._options.max_failed_groups:
            raise AgentError(
                f"{self._failed_groups} tasks in a row gave nothing to train on; of task "
                f"{prompt.index}, the last one, {len(branches)} of {n} rollouts are usable: "
                f"{_reasons(decisions)}"
            )
        published = rows if usable else ()
        await self._publish(lambda: self._publisher.end(prompt, published, usable=usable))
        self._changed()

    def _rows(self, branches: Sequence[Branch], prompt: Prompt, tally: Tally) -> list[GroupRow]:
        """Return the rows of a group, with advantages if they are not left to verl."""
        credit = self._options.credit
        advantages: Sequence[Sequence[Sequence[float] | None]]
        if prompt.validate or credit.type == "group":
            advantages = [[None] * len(branch.decision.rows) for branch in branches]
        else:
            found = token_advantages(branches, credit, normalise=self._settings.normalise)
            tally.spreads += spreads(branches, found)
            advantages = found
        return [
            GroupRow(
                branch.session,
                index,
                row,
                branch.decision.reward,
                sum(row.turns for row in branch.decision.rows),
                of_row,
            )
            for branch, of_rows in zip(branches, advantages, strict=True)
            for index, (row, of_row) in enumerate(zip(branch.decision.rows, of_rows, strict=True))
        ]

    async def _run_forks(
        self, forks: Forks, prompt: Prompt, rollouts: Sequence[Branch], tally: Tally
    ) -> list[Branch]:
        """Run the forks of a group's rollouts; return the usable ones."""
        chosen = await forks.requests(rollouts, (prompt.step, prompt.index))
        ended = await self._rollouts(prompt, [request for _, request in chosen], tally, fork=True)
        first = self._settings.n_train
        branches = [
            Branch(first + number, rollout_id, decision, point)
            for number, ((point, _), (rollout_id, decision)) in enumerate(
                zip(chosen, ended, strict=True)
            )
            if decision.action == "keep"
        ]
        forks.learn([*rollouts, *branches])
        return branches

    def _is_usable(
        self, prompt: Prompt, decisions: Sequence[Decision], kept: int, tally: Tally
    ) -> bool:
        wanted = len(decisions)
        usable = kept >= min(wanted, self._options.min_group_size)
        reasons = _reasons(decisions)
        if usable:
            self._failed_groups = 0
            tally.count(groups=1, groups_partial=int(kept < wanted))
            if kept < wanted:
                logger.warning(
                    "step %d trains on %d of %d rollouts of task %d: %s",
                    *(prompt.step, kept, wanted, prompt.index, reasons),
                )
            return True
        self._failed_groups += 1
        tally.count(groups=1, groups_dropped=1)
        logger.warning(
            "task %d is dropped from step %d: %d of %d rollouts are usable, %s",
            *(prompt.index, prompt.step, kept, wanted, reasons),
        )
        return False

    def _check_use(self, decisions: Sequence[Decision]) -> None:
        """Stop a run whose first step shows that no step will train anything.

        Otherwise other tasks would replace those of the step, up to ``max_failed_groups``.

        Raises:
            RunFailedError: The agent or the configuration excludes every rollout of the step.
        """
        step = self._first_step
        step.add(decisions)
        if not step.is_useless or step.groups < self._settings.tasks:
            return
        reason = ", ".join(f"{count} ({name})" for name, count in step.reasons.most_common())
        if step.otherwise:
            temperature = self._settings.sampling["temperature"]
            advice = sampling_advice(step.otherwise, temperature, _TEMPERATURE)
            reason += f": {advice}"
        raise RunFailedError(f"no rollout of the first step can be trained on: {reason}")

    def _request(self, prompt: Prompt) -> EnqueueRolloutRequest:
        partition = prompt.partition
        return EnqueueRolloutRequest(
            input=self._datasets[partition][prompt.index],
            mode="val" if prompt.validate else "train",
            resources_id=self._resources[partition],
            config=RolloutConfig(timeout_seconds=self._options.rollout_timeout),
        )

    async def _rollouts(
        self,
        prompt: Prompt,
        requests: Sequence[EnqueueRolloutRequest],
        tally: Tally,
        *,
        fork: bool = False,
    ) -> list[tuple[str, Decision]]:
        """Run rollouts, with retries unless they are forks.

        Returns:
            Id and decision of each.
        """
        metadata = {"data_id": prompt.uid, "is_train": not prompt.validate, "step": prompt.step}
        enqueued = await self._run.enqueue(
            [request.model_copy(update={"metadata": metadata}) for request in requests],
            batch=f"{self._settings.batch}-{prompt.partition}-{prompt.uid}{'-forks' * fork}",
        )
        sessions = {rollout.rollout_id: place for place, rollout in enumerate(enqueued)}
        self._open.update(sessions)
        decisions: dict[int, Decision] = {}
        tries: Counter[str] = Counter()
        pending = set(sessions)
        while pending:
            for rollout in await self._run.wait_for_rollouts(sorted(pending), _WAIT_SECONDS):
                tries[rollout.rollout_id] += 1
                count = tries[rollout.rollout_id]
                decision = await self._decide(prompt, rollout, count, tally, fork)
                if decision.action == "retry":
                    await self._store.update_rollout(rollout.rollout_id, status="requeuing")
                    continue
                attempt = await self._store.get_latest_attempt(rollout.rollout_id)
                if attempt is not None:
                    # The run retries attempts by itself when their runner died.
                    lost = attempt.sequence_id - tries[rollout.rollout_id]
                    tally.count(attempts_lost=max(lost, 0))
                decisions[sessions[rollout.rollout_id]] = decision
                pending.discard(rollout.rollout_id)
                self._open.discard(rollout.rollout_id)
        counted = self._counted([decisions[i] for i in range(len(enqueued))], tally)
        return [(one.rollout_id, counted[i]) for i, one in enumerate(enqueued)]

    def _counted(self, decisions: Sequence[Decision], tally: Tally) -> list[Decision]:
        """Return the decisions on a group, with failures as what they count beside the others."""
        scale = RewardScale(self._run.reward_range)
        scale.learn(one.reward for one in decisions if one.reward != FAILURE)
        failure = scale.failure if math.isfinite(scale.failure) else 0.0  # all are equal
        tally.rewards = [failure if it == FAILURE else it for it in tally.rewards]
        return [replace(d, reward=failure) if d.reward == FAILURE else d for d in decisions]

    async def _decide(
        self, prompt: Prompt, rollout: Rollout, tries: int, tally: Tally, fork: bool
    ) -> Decision:
        # A validation is not trained on: its reward counts however its calls were sampled.
        trained = None if prompt.validate else self._settings.sampling
        async with self._readers:
            spans = (await self._store.query_spans(rollout.rollout_id, "latest")).items
            rows, report = await to_thread.run_sync(self._builder.build, spans, trained)
        reward = find_final_reward(spans)
        decision = decide(
            rollout.status,
            reward,
            rows,
            limits=self._settings.limits,
            options=self._options,
            may_retry=not fork and tries <= self._options.max_retries,
        )
        if self._options.credit.type == "agents" and not decision.penalised:
            decision = replace(decision, rewards=named_rewards(spans))
        if rollout.status == "failed":
            self._suspect()
        tally.note(decision, rows, reward, report, fork=fork)
        return decision

    async def _publish(self, call: Callable[[], None]) -> None:
        outcome = await self._queue_calls.submit(call)
        if outcome.error is not None:
            raise outcome.error

    def _add(self, partition: str, tally: Tally) -> None:
        with self._lock:
            self._counts[partition].update(tally.counts)
            self._rewards[partition] += tally.rewards
            self._spreads += tally.spreads


def _reasons(decisions: Sequence[Decision]) -> dict[str, int]:
    return dict(Counter(str(v.reason) for v in decisions if v.action != "keep"))
