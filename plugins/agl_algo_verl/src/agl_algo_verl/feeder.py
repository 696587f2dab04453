"""Turns the trainer's prompts into rollouts, and what agents make of them into rows.

One prompt is one group: ``rollout.n`` rollouts of one task. The feeder lives in the algorithm's
loop. The trainer, in a thread of its own, hands it prompts and finds rows in its queue; see
:mod:`agl_algo_verl.bridge`.
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
from agl_algo_verl.judging import Limits, Verdict, judge
from agl_algo_verl.rows import Row, RowBuilder
from agl_core.adapter import AdapterReport
from agl_core.algorithm import Run, cancel_rollouts
from agl_core.emitter import find_final_reward
from agl_core.errors import AgentError
from agl_core.runner import SyncCalls
from agl_core.store import LightningStore
from agl_core.types import Dataset, EnqueueRolloutRequest, Rollout, RolloutConfig

__all__ = ["Feeder", "FeederSettings", "GroupRow", "Prompt", "Publisher"]

logger = logging.getLogger(__name__)

_SLICE_SECONDS = 2.0
"""A group's wait returns the moment all of it has ended; the slice is for those to be retried."""
_READERS = 8


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of the trainer: a task to be done by a group of rollouts.

    Attributes:
        uid: The trainer's name of the group; unique.
        index: Which task of the dataset.
        step: The step it was given out for, from 1; 0 is the validation before the first.
        validate: Whether it is of the validation dataset.
    """

    uid: str
    index: int
    step: int
    validate: bool = False

    @property
    def partition(self) -> str:
        """What verl calls the dataset."""
        return "val" if self.validate else "train"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A row in its place.

    Attributes:
        session: Which rollout of the group it is of, from 0.
        index: Which row of the rollout it is, from 0.
        row: The row.
        reward: The reward of its rollout.
        turns: Model calls of the rollout.
    """

    session: int
    index: int
    row: Row
    reward: float
    turns: int


class Publisher(Protocol):
    """Where rows go; called in worker threads."""

    def begin(self, prompt: Prompt) -> None:
        """Note that the group is being worked on."""
        ...

    def end(self, prompt: Prompt, rows: Sequence[GroupRow], *, usable: bool) -> None:
        """Hand over the rows of a group; without any if it is not usable."""
        ...

    def placeholder(self) -> Row:
        """Return a row that stands for a rollout without one, in validation only."""
        ...


@dataclass(frozen=True, slots=True)
class FeederSettings:
    """What the feeder takes from verl's configuration.

    Attributes:
        n_train: Rollouts of a group.
        n_val: Rollouts of a validation task.
        limits: What rows must keep to.
        batch: Prefix of the names of batches, unique in the run.
    """

    n_train: int
    n_val: int
    limits: Limits
    batch: str


class Feeder:
    """Runs groups of rollouts.

    Args:
        store: Where tasks go.
        run: The run they belong to; it has a name.
        options: The policies.
        settings: See :class:`FeederSettings`.
        datasets: Tasks by partition.
        resources: Id of the resources by partition.
        builder: Makes rows.
        publisher: Takes them.
        changed: Called, in any thread, whenever a group has ended.
        suspect: Called in the loop whenever a rollout failed: perhaps a server has.
    """

    def __init__(
        self,
        store: LightningStore,
        run: Run,
        options: VERLConfig,
        settings: FeederSettings,
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
        # A queue whose process died may never answer: its threads can be left behind.
        self._queue_calls = SyncCalls("agl-verl-queue")
        self._failed_groups = 0
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {"train": Counter(), "val": Counter()}
        self._rewards: dict[str, list[float]] = {"train": [], "val": []}

    async def cancel(self) -> None:
        """Cancel the rollouts that are not done."""
        await cancel_rollouts(self._store, sorted(self._open))
        self._open.clear()
        self._queue_calls.close()

    def take_metrics(self, partition: str) -> dict[str, float]:
        """Return what was counted since the last time; from any thread."""
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
        """Have a task done, and hand over its rows.

        Raises:
            AgentError: Too many groups in a row had nothing to train on.
        """
        tally = _Tally()
        await self._publish(lambda: self._publisher.begin(prompt))
        verdicts = await self._verdicts(prompt, tally)
        rows = [
            GroupRow(session, index, row, verdict.reward, sum(row.turns for row in verdict.rows))
            for session, verdict in enumerate(verdicts)
            for index, row in enumerate(verdict.rows)
        ]
        kept = sum(verdict.action == "keep" for verdict in verdicts)
        if prompt.validate:
            rows += [
                GroupRow(session, 0, self._publisher.placeholder(), verdict.reward, 0)
                for session, verdict in enumerate(verdicts)
                if verdict.action != "keep"
            ]
            usable = True
        else:
            usable = self._is_usable(prompt, verdicts, kept, len(rows), tally)
        self._add(prompt.partition, tally)
        if self._failed_groups >= self._options.max_failed_groups:
            raise AgentError(
                f"{self._failed_groups} tasks in a row gave nothing to train on; of the last one, "
                f"task {prompt.index}, {kept} of {len(verdicts)} rollouts could be used: "
                f"{_reasons(verdicts)}"
            )
        handed = rows if usable else ()
        await self._publish(lambda: self._publisher.end(prompt, handed, usable=usable))
        self._changed()

    def _is_usable(
        self, prompt: Prompt, verdicts: Sequence[Verdict], kept: int, rows: int, tally: _Tally
    ) -> bool:
        wanted = len(verdicts)
        usable = kept >= min(wanted, self._options.min_group_size)
        reasons = _reasons(verdicts)
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
            "task %d is dropped from step %d: %d of %d rollouts left, %s",
            *(prompt.index, prompt.step, kept, wanted, reasons),
        )
        return False

    async def _verdicts(self, prompt: Prompt, tally: _Tally) -> list[Verdict]:
        """Have the rollouts of a group done, tried again if need be; return one verdict each."""
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
        verdicts: dict[int, Verdict] = {}
        tries: Counter[str] = Counter()
        pending = set(sessions)
        while pending:
            for rollout in await self._run.wait_for_rollouts(sorted(pending), _SLICE_SECONDS):
                tries[rollout.rollout_id] += 1
                verdict = await self._judge(rollout, tries[rollout.rollout_id], tally)
                if verdict.action == "retry":
                    await self._store.update_rollout(rollout.rollout_id, status="requeuing")
                    continue
                attempt = await self._store.get_latest_attempt(rollout.rollout_id)
                if attempt is not None:
                    # The run tries again by itself what a runner died of.
                    lost = attempt.sequence_id - tries[rollout.rollout_id]
                    tally.count(attempts_lost=max(lost, 0))
                verdicts[sessions[rollout.rollout_id]] = verdict
                pending.discard(rollout.rollout_id)
                self._open.discard(rollout.rollout_id)
        return [verdicts[place] for place in range(n)]

    async def _judge(self, rollout: Rollout, tries: int, tally: _Tally) -> Verdict:
        async with self._readers:
            spans = (await self._store.query_spans(rollout.rollout_id, "latest")).items
            rows, report = await to_thread.run_sync(self._builder.build, spans)
        reward = find_final_reward(spans)
        verdict = judge(
            rollout.status,
            reward,
            rows,
            limits=self._settings.limits,
            options=self._options,
            may_retry=tries <= self._options.max_retries,
        )
        if rollout.status == "failed":
            self._suspect()
        tally.note(verdict, rows, reward, report)
        return verdict

    async def _publish(self, call: Callable[[], None]) -> None:
        outcome = await self._queue_calls.submit(call)
        if outcome.error is not None:
            raise outcome.error

    def _add(self, partition: str, tally: _Tally) -> None:
        with self._lock:
            self._counts[partition].update(tally.counts)
            self._rewards[partition] += tally.rewards


def _reasons(verdicts: Sequence[Verdict]) -> dict[str, int]:
    return dict(Counter(str(v.reason) for v in verdicts if v.action != "keep"))


# -- counting --------------------------------------------------------------------------------------


class _Tally:
    """What is counted of one group; it joins the others' when the group has ended."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rewards: list[float] = []

    def count(self, **numbers: int) -> None:
        self.counts.update(numbers)

    def note(
        self,
        verdict: Verdict,
        rows: Sequence[Row],
        reward: float | None,
        report: AdapterReport,
    ) -> None:
        reason = verdict.reason
        if reason is not None:
            self.count(**{f"rollouts_{reason}": 1})
        if verdict.action == "retry":
            self.count(rollouts_retried=1)
            return
        self.rewards.append(verdict.reward)
        dropped = len(rows) - len(verdict.rows)
        self.count(
            rollouts=1,
            rollouts_with_rows=int(bool(rows)),
            rollouts_with_reward=int(reward is not None),
            rollouts_dropped=int(verdict.action == "drop"),
            rollouts_penalised=int(verdict.penalised),
            rows_dropped=dropped,
            rows_prompt_too_long=verdict.fit.prompt_too_long,
            rows_response_too_long=verdict.fit.response_too_long,
            rows_without_logprobs=verdict.without_logprobs,
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
"""Counts that are reported also when they are 0: a curve with holes is hard to read."""
