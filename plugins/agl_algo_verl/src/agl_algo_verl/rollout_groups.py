"""Runs groups of rollouts for the trainer's prompts, and publishes their rows.

One prompt is one group: ``rollout.n`` rollouts of one task. Groups run in the algorithm's event
loop. The trainer, in a thread of its own, submits prompts (:mod:`agl_algo_verl.bridge`) and reads
rows from its queue.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
from anyio import to_thread

from agl_algo_verl.config import VERLConfig
from agl_algo_verl.decisions import Decision, Limits, decide
from agl_algo_verl.rows import Row, RowBuilder
from agl_core.adapter import AdapterReport
from agl_core.algorithm import Run, cancel_rollouts
from agl_core.emitter import find_final_reward
from agl_core.errors import AgentError
from agl_core.runner import SyncCalls
from agl_core.store import LightningStore
from agl_core.types import Dataset, EnqueueRolloutRequest, Rollout, RolloutConfig

__all__ = ["GroupRow", "GroupRunner", "GroupSettings", "Prompt", "Publisher"]

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 2.0
"""Longest wait before ended rollouts are examined, and retried if needed, while others run."""
_READERS = 8


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
    """

    session: int
    index: int
    row: Row
    reward: float
    turns: int


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
    """

    n_train: int
    n_val: int
    limits: Limits
    batch: str


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
        self._readers = anyio.CapacityLimiter(_READERS)
        self._open: set[str] = set()
        # A queue whose process died may never answer; these threads can be abandoned then.
        self._queue_calls = SyncCalls("agl-verl-queue")
        self._failed_groups = 0
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {"train": Counter(), "val": Counter()}
        self._rewards: dict[str, list[float]] = {"train": [], "val": []}

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
        prefix = "agl/" if partition == "train" else "agl/val_"
        metrics = {prefix + name: float(counts[name]) for name in sorted({*counts, *_ALWAYS})}
        reference = "training" if partition == "train" else "val"
        metrics[f"{reference}/n_rollouts"] = float(counts["rollouts"])
        metrics[f"{reference}/n_rollouts_w_trace"] = float(counts["rollouts_with_rows"])
        metrics[f"{reference}/n_rollouts_w_reward"] = float(counts["rollouts_with_reward"])
        if rewards:
            metrics[f"{reference}/reward"] = sum(rewards) / len(rewards)
        return metrics

    # -- one group -------------------------------------------------------------------------------

    async def run_group(self, prompt: Prompt) -> None:
        """Run the rollouts of a task and publish their rows.

        Raises:
            AgentError: Too many groups in a row had no usable rollout.
        """
        tally = _Tally()
        await self._publish(lambda: self._publisher.begin(prompt))
        decisions = await self._decisions(prompt, tally)
        rows = [
            GroupRow(session, index, row, decision.reward, sum(row.turns for row in decision.rows))
            for session, decision in enumerate(decisions)
            for index, row in enumerate(decision.rows)
        ]
        kept = sum(decision.action == "keep" for decision in decisions)
        if prompt.validate:
            rows += [
                GroupRow(session, 0, self._publisher.placeholder(), decision.reward, 0)
                for session, decision in enumerate(decisions)
                if decision.action != "keep"
            ]
            usable = True
        else:
            usable = self._is_usable(prompt, decisions, kept, len(rows), tally)
        self._add(prompt.partition, tally)
        if self._failed_groups >= self._options.max_failed_groups:
            raise AgentError(
                f"{self._failed_groups} tasks in a row gave nothing to train on; of task "
                f"{prompt.index}, the last one, {kept} of {len(decisions)} rollouts are usable: "
                f"{_reasons(decisions)}"
            )
        published = rows if usable else ()
        await self._publish(lambda: self._publisher.end(prompt, published, usable=usable))
        self._changed()

    def _is_usable(
        self, prompt: Prompt, decisions: Sequence[Decision], kept: int, rows: int, tally: _Tally
    ) -> bool:
        wanted = len(decisions)
        usable = kept >= min(wanted, self._options.min_group_size)
        reasons = _reasons(decisions)
        if usable:
            self._failed_groups = 0
            tally.count(groups=1, rows=rows, groups_partial=int(kept < wanted))
            if kept < wanted:
                logger.warning(
                    "step %d trains on %d of %d rollouts of task %d: %s",
                    *(prompt.step, kept, wanted, prompt.index, reasons),
                )
            return True
        self._failed_groups += 1
        tally.count(groups=1, groups_dropped=1, rows_dropped_with_group=rows)
        logger.warning(
            "task %d is dropped from step %d: %d of %d rollouts are usable, %s",
            *(prompt.index, prompt.step, kept, wanted, reasons),
        )
        return False

    async def _decisions(self, prompt: Prompt, tally: _Tally) -> list[Decision]:
        """Run the rollouts of a group, with retries; return one decision per rollout."""
        partition = prompt.partition
        n = self._settings.n_val if prompt.validate else self._settings.n_train
        request = EnqueueRolloutRequest(
            input=self._datasets[partition][prompt.index],
            mode="val" if prompt.validate else "train",
            resources_id=self._resources[partition],
            config=RolloutConfig(timeout_seconds=self._options.rollout_timeout),
            metadata={
                "data_id": prompt.uid,
                "is_train": not prompt.validate,
                "step": prompt.step,
            },
        )
        enqueued = await self._run.enqueue(
            [request] * n, batch=f"{self._settings.batch}-{partition}-{prompt.uid}"
        )
        sessions = {rollout.rollout_id: place for place, rollout in enumerate(enqueued)}
        self._open.update(sessions)
        decisions: dict[int, Decision] = {}
        tries: Counter[str] = Counter()
        pending = set(sessions)
        while pending:
            for rollout in await self._run.wait_for_rollouts(sorted(pending), _WAIT_SECONDS):
                tries[rollout.rollout_id] += 1
                decision = await self._decide(rollout, tries[rollout.rollout_id], tally)
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
        return [decisions[place] for place in range(n)]

    async def _decide(self, rollout: Rollout, tries: int, tally: _Tally) -> Decision:
        async with self._readers:
            spans = (await self._store.query_spans(rollout.rollout_id, "latest")).items
            rows, report = await to_thread.run_sync(self._builder.build, spans)
        reward = find_final_reward(spans)
        decision = decide(
            rollout.status,
            reward,
            rows,
            limits=self._settings.limits,
            options=self._options,
            may_retry=tries <= self._options.max_retries,
        )
        if rollout.status == "failed":
            self._suspect()
        tally.note(decision, rows, reward, report)
        return decision

    async def _publish(self, call: Callable[[], None]) -> None:
        outcome = await self._queue_calls.submit(call)
        if outcome.error is not None:
            raise outcome.error

    def _add(self, partition: str, tally: _Tally) -> None:
        with self._lock:
            self._counts[partition].update(tally.counts)
            self._rewards[partition] += tally.rewards


def _reasons(decisions: Sequence[Decision]) -> dict[str, int]:
    return dict(Counter(str(v.reason) for v in decisions if v.action != "keep"))


# -- counting --------------------------------------------------------------------------------------


class _Tally:
    """Counts of one group, which are added to the totals when the group has ended."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rewards: list[float] = []

    def count(self, **numbers: int) -> None:
        self.counts.update(numbers)

    def note(
        self,
        decision: Decision,
        rows: Sequence[Row],
        reward: float | None,
        report: AdapterReport,
    ) -> None:
        reason = decision.reason
        if reason is not None:
            self.count(**{f"rollouts_{reason}": 1})
        if decision.action == "retry":
            self.count(rollouts_retried=1)
            return
        self.rewards.append(decision.reward)
        dropped = len(rows) - len(decision.rows)
        self.count(
            rollouts=1,
            rollouts_with_rows=int(bool(rows)),
            rollouts_with_reward=int(reward is not None),
            rollouts_dropped=int(decision.action == "drop"),
            rollouts_penalised=int(decision.penalised),
            rows_dropped=dropped,
            rows_prompt_too_long=decision.fit.prompt_too_long,
            rows_response_too_long=decision.fit.response_too_long,
            rows_without_logprobs=decision.without_logprobs,
            calls_without_token_ids=report.count("call", "no token ids"),
        )
        if report.certificates is not None:
            self.count(
                rows_after_a_break=report.certificates.breaks.total(),
                rows_of_several_versions=report.certificates.mixed,
            )


_ALWAYS = (
    "attempts_lost",
    "groups",
    "groups_dropped",
    "groups_partial",
    "rollouts",
    "rollouts_dropped",
    "rollouts_failed",
    "rollouts_penalised",
    "rollouts_retried",
    "rows",
    "rows_dropped",
)
"""Counts that are reported even if they are 0, so that their curves have no gaps."""
