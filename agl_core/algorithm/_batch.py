"""One batch of tasks, from the queue to its rewards: the inner step of most algorithms.

::

    batch = await run_batch(store, tasks, resources={"prompt": template}, mode="val", timeout=600)
    print(batch.score())          # 0.875 [0.698, 0.995] (n=24)
    for outcome in batch:
        print(outcome.rollout.status, outcome.reward, len(outcome.spans))
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import anyio

from agl_core.algorithm._progress import show_progress
from agl_core.algorithm._reward_scale import RewardRange, RewardScale, earned_reward
from agl_core.algorithm._run import Run, rollouts_of
from agl_core.emitter import find_final_reward
from agl_core.errors import RunFailedError
from agl_core.statistics import (
    CONFIDENCE,
    Estimate,
    Gain,
    estimate_gain,
    estimate_mean,
    means_by_task,
    pass_at_k,
    reward_ends,
)
from agl_core.status import failed_by
from agl_core.types import (
    FINISHED_STATUSES,
    Dataset,
    EnqueueRolloutRequest,
    NamedResources,
    Rollout,
    RolloutConfig,
    RolloutMode,
    Span,
    task_digest,
)

if TYPE_CHECKING:
    from agl_core.adapter import Adapter
    from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

_PROGRESS_INTERVAL = 0.5  # seconds between two updates of the progress display
_READERS = 16  # outcomes read from the store at a time
_CANCEL_TIMEOUT = 10.0  # seconds to cancel the rollouts that are left


@dataclass(frozen=True)
class RolloutOutcome:
    """Result of one task.

    Attributes:
        rollout: The rollout after its end; ``cancelled`` if it did not end in time.
        reward: Its final reward; None if it has none. :attr:`earned` is the one to score with.
        spans: The spans of its latest attempt, by sequence id.
        adapted: The adapter's output for the spans; None without an adapter or without spans.
        started: False if no runner had begun it when its batch timed out.
        infrastructure: What failed it that is not the agent, such as ``proxy``; None otherwise. It
            says nothing about the agent, so it is not scored.
    """

    rollout: Rollout
    reward: float | None
    spans: Sequence[Span] = field(repr=False)
    adapted: Any = field(default=None, repr=False)
    started: bool = True
    infrastructure: str | None = None

    @property
    def earned(self) -> float | None:
        """The reward of a rollout that finished; None for a failure (:func:`earned_reward`)."""
        return earned_reward(self.rollout.status, self.reward)

    @property
    def digest(self) -> str:
        """Digest of its task (:func:`agl_core.types.task_digest`)."""
        return task_digest(self.rollout.input)


@dataclass(frozen=True)
class BatchOutcome(Sequence[RolloutOutcome]):
    """Results of a batch, in the order of its tasks.

    Attributes:
        outcomes: One per task.
        resources_id: The snapshot that the tasks ran with.
        reward_range: Lowest and highest possible reward, if the user declared them.
    """

    outcomes: Sequence[RolloutOutcome]
    resources_id: str | None = None
    reward_range: RewardRange | None = None

    @overload
    def __getitem__(self, index: int) -> RolloutOutcome: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RolloutOutcome]: ...
    def __getitem__(self, index: int | slice) -> RolloutOutcome | Sequence[RolloutOutcome]:
        return self.outcomes[index]

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def scored(self) -> Sequence[RolloutOutcome]:
        """The outcomes that say something about the agent: those not failed by infrastructure."""
        return [one for one in self.outcomes if one.infrastructure is None]

    @property
    def scale(self) -> RewardScale:
        """The scale of the rewards: the declared one, or that of this batch."""
        scale = RewardScale(self.reward_range)
        scale.learn(one.earned for one in self.outcomes)
        return scale

    def rewards(self, missing: float | Literal["last"] | None = "last") -> list[float]:
        """Return a reward per task of :attr:`scored`.

        Args:
            missing: Reward of a failure: a task that failed, did not end in time, or got no
                reward. ``last`` is what :attr:`RewardScale.failure` says, which is below the
                rewards of all others; None leaves such tasks out.
        """
        if missing == "last":
            return self.scale.counted(one.earned for one in self.scored)
        found = (missing if o.earned is None else o.earned for o in self.scored)
        return [reward for reward in found if reward is not None]

    def task_rewards(
        self, missing: float | None = None, reward_range: tuple[float, float] | None = None
    ) -> dict[str, float]:
        """Return the mean reward of each task by its digest, in the order of the tasks.

        Args:
            missing: Reward of a failure: a rollout that failed, did not end in time, or got no
                reward. None takes the lowest possible one: the lower end of the range or, without
                a declared range, 0 or the lowest reward of the batch if that is below 0.
            reward_range: The declared range; by default that of the batch.
        """
        if missing is None:
            missing, _ = _reward_ends([self], reward_range)
        digests = (outcome.digest for outcome in self.scored)
        return means_by_task(zip(digests, self.rewards(missing), strict=True))

    def pass_at(self, k: int, threshold: float = 1.0) -> Estimate:
        """Return pass@k over the tasks with its interval: the chance that one of k attempts passes.

        Args:
            k: Number of attempts; every task needs as many rollouts.
            threshold: Reward from which on a rollout passes; a failure does not.

        Raises:
            InvalidArgumentError: A task has fewer than ``k`` rollouts, or there is none.
        """
        counts: dict[str, list[int]] = {}
        for outcome in self.scored:
            count = counts.setdefault(outcome.digest, [0, 0])
            count[0] += outcome.earned is not None and outcome.earned >= threshold
            count[1] += 1
        return estimate_mean([pass_at_k(passed, n, k) for passed, n in counts.values()])

    @property
    def attempts(self) -> int:
        """The smallest number of rollouts of a task."""
        return min(Counter(one.digest for one in self.scored).values(), default=0)

    def score(
        self,
        confidence: float = CONFIDENCE,
        *,
        missing: float | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> Estimate:
        """Return the mean reward over the tasks and its confidence interval.

        Several rollouts of one task count as one value, their mean.

        Args:
            confidence: Between 0 and 1, exclusive.
            missing: Reward of a failure; see :meth:`task_rewards`.
            reward_range: The declared range; by default that of the batch.

        Returns:
            Minus infinity, with an infinite interval, if no task finished and neither a range nor
            ``missing`` is given: nothing is known of the rewards then.

        Raises:
            InvalidArgumentError: The batch is empty, or a reward is outside the given range.
        """
        ends = _reward_ends([self], reward_range)
        values = list(self.task_rewards(missing, ends).values())
        given = (missing, reward_range, self.reward_range)
        if values and given == (None, None, None) and not self.rewards(missing=None):
            return Estimate(-math.inf, -math.inf, math.inf, len(values))
        return estimate_mean(values, confidence, reward_range=_widened(ends, missing))

    def gain_over(
        self,
        before: BatchOutcome,
        confidence: float = CONFIDENCE,
        *,
        missing: float | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> Gain:
        """Return the mean gain over an earlier batch, paired by task, and its confidence interval.

        Args:
            before: The other batch; tasks that only one of the two has are left out.
            confidence: Between 0 and 1, exclusive.
            missing: Reward of a failure; see :meth:`paired_with`.
            reward_range: The declared range; by default that of the batches.

        Raises:
            InvalidArgumentError: The batches share no task, or a reward is outside the given range.
        """
        ends = _reward_ends([self, before], reward_range)
        pairs = self.paired_with(before, missing=missing, reward_range=ends).values()
        return estimate_gain(
            [old for old, _ in pairs],
            [new for _, new in pairs],
            confidence,
            reward_range=_widened(ends, missing),
        )

    def paired_with(
        self,
        before: BatchOutcome,
        *,
        missing: float | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> dict[str, tuple[float, float]]:
        """Return the mean rewards of each task that both batches have: in ``before``, and here.

        Args:
            before: The other batch.
            missing: Reward of a failure; see :meth:`task_rewards`. Without a declared range the
                lowest reward of both batches counts.
            reward_range: The declared range; by default that of the batches.

        Returns:
            By the task's digest, in the order of ``before``.
        """
        ends = _reward_ends([self, before], reward_range)
        old, new = (one.task_rewards(missing, ends) for one in (before, self))
        return {task: (old[task], new[task]) for task in old if task in new}

    def statuses(self) -> dict[str, int]:
        """Count the tasks by the status they ended with."""
        return dict(Counter(outcome.rollout.status for outcome in self.outcomes))


async def run_batch(
    store: LightningStore,
    tasks: Dataset[Any],
    *,
    resources: NamedResources | str | None = None,
    mode: RolloutMode | None = None,
    config: RolloutConfig | None = None,
    metadata: dict[str, Any] | None = None,
    adapter: Adapter[Any, Any] | None = None,
    timeout: float | None = None,
    description: str = "rollouts",
    run: Run | None = None,
    name: str = "",
) -> BatchOutcome:
    """Enqueue tasks, wait until the runners are done with them, and read the results.

    Rollouts that are not finished at the timeout, or when the caller is cancelled, are cancelled in
    the store: none of them is left for runners to pick up later. In a run with a name, an
    interrupted batch is not cancelled: the resumed run continues it.

    Args:
        store: Where the tasks go.
        tasks: One rollout is made of each.
        resources: Resources of the tasks, stored here as a new snapshot, or the id of a snapshot.
            None takes the latest.
        mode: Mode of the rollouts, such as ``train`` or ``val``.
        config: Timeouts and retries of each rollout.
        metadata: Stored with each rollout.
        adapter: Applied to the spans of each outcome.
        timeout: Seconds for the whole batch; None waits without a limit.
        description: Name of the batch in the progress display.
        run: The run that the batch belongs to: tasks that it enqueued before are not enqueued
            again.
        name: Name of the batch, unique in the run; needed if the run has a name.

    Raises:
        InvalidArgumentError: The batch needs a name, or the run has another batch of this name.
        RunFailedError: The infrastructure failed every rollout.
    """
    run = run or Run(store)
    if resources is not None and not isinstance(resources, str):
        resources = await run.put_resources(name, resources)
    requests = [
        EnqueueRolloutRequest(
            input=tasks[i], mode=mode, resources_id=resources, config=config, metadata=metadata
        )
        for i in range(len(tasks))
    ]
    return await run_requests(
        store,
        requests,
        adapter=adapter,
        timeout=timeout,
        description=description,
        run=run,
        name=name,
    )


async def run_requests(
    store: LightningStore,
    requests: Sequence[EnqueueRolloutRequest],
    *,
    adapter: Adapter[Any, Any] | None = None,
    timeout: float | None = None,
    description: str = "rollouts",
    run: Run | None = None,
    name: str = "",
    is_enough: Callable[[Sequence[RolloutOutcome]], bool] | None = None,
) -> BatchOutcome:
    """Do as :func:`run_batch` with requests, each of which has its own configuration.

    Args:
        store: As there.
        requests: The rollouts.
        adapter: As there.
        timeout: As there.
        description: As there.
        run: As there.
        name: As there.
        is_enough: Called with the outcomes that are new; once it returns True, for instance since
            a budget is spent, the other rollouts are cancelled.
    """
    run = run or Run(store)
    enqueued = await run.enqueue(requests, batch=name)
    pending = {rollout.rollout_id for rollout in enqueued}
    ended: dict[str, Rollout] = {}
    outcomes: dict[str, RolloutOutcome] = {}
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    try:
        with show_progress(description, len(enqueued)) as progress:
            while pending and (left := deadline - time.monotonic()) > 0:
                # Returns the moment all are done; the slice is for the progress display.
                done = await run.wait_for_rollouts(list(pending), min(left, _PROGRESS_INTERVAL))
                ended.update((rollout.rollout_id, rollout) for rollout in done)
                pending.difference_update(ended)
                progress.update(len(ended), _failures(ended.values()))
                # While the others run, so that the end of the batch does not wait for all of them.
                found = await _read(store, done, adapter)
                outcomes |= found
                if is_enough is not None and found and is_enough(list(found.values())):
                    break
    except BaseException:
        if not run.name:
            await cancel_rollouts(store, pending)
        raise
    if pending:
        queue = await store.query_rollouts(rollout_id_in=list(pending), status_in=["queuing"])
        cancelled = await cancel_rollouts(store, pending)
        outcomes |= await _read(store, cancelled, adapter)
        for rollout in queue:
            if outcomes[rollout.rollout_id].rollout.status == "cancelled":
                outcomes[rollout.rollout_id] = replace(outcomes[rollout.rollout_id], started=False)
        logger.warning("%s: %d of %d did not end in time", description, len(pending), len(enqueued))
    lost = Counter(one.infrastructure for one in outcomes.values() if one.infrastructure)
    for what, count in lost.items():
        logger.warning(
            "%s: %d of %d failed by the %s and are not scored",
            *(description, count, len(enqueued), what),
        )
    if enqueued and lost.total() == len(enqueued):
        raise RunFailedError(
            f"{description}: all {len(enqueued)} rollouts failed by the {next(iter(lost))}, also "
            "when they were repeated; the attempts' errors say how"
        )
    return BatchOutcome(
        [outcomes[rollout.rollout_id] for rollout in enqueued],
        enqueued[0].resources_id if enqueued else None,
        run.reward_range,
    )


async def read_batch(store: LightningStore, run: str, batch: str | None = None) -> BatchOutcome:
    """Read the rollouts of a named run that have ended, in the order of their enrolment.

    Args:
        store: The store.
        run: Name of the run.
        batch: Name of one of its batches; None reads all of them.

    Returns:
        The outcomes; their ``resources_id`` is None if the rollouts had different ones.
    """
    found: list[Rollout] = []
    async for (name, _), rollout in rollouts_of(store, run):
        if batch in (None, name) and rollout.status in FINISHED_STATUSES:
            found.append(rollout)
    outcomes = await _read(store, found, None)
    snapshots = {rollout.resources_id for rollout in found}
    return BatchOutcome(
        [outcomes[rollout.rollout_id] for rollout in found],
        snapshots.pop() if len(snapshots) == 1 else None,
    )


async def cancel_rollouts(store: LightningStore, rollout_ids: Iterable[str]) -> list[Rollout]:
    """Cancel those of these rollouts that are not finished; works in a cancelled task too.

    Args:
        store: The store of the rollouts.
        rollout_ids: Ids of the rollouts.

    Returns:
        The rollouts after the cancellation, without those that the store gave no answer for
        within 10 seconds.
    """
    waiting = list(rollout_ids)
    rollouts: list[Rollout] = []
    if not waiting:
        return rollouts
    with anyio.CancelScope(shield=True), anyio.move_on_after(_CANCEL_TIMEOUT):
        rollouts += await store.wait_for_rollouts(rollout_ids=waiting, timeout=0)
        for rollout_id in set(waiting).difference(rollout.rollout_id for rollout in rollouts):
            rollouts.append(await store.update_rollout(rollout_id, status="cancelled"))
    return rollouts


async def _read(
    store: LightningStore, rollouts: Sequence[Rollout], adapter: Adapter[Any, Any] | None
) -> dict[str, RolloutOutcome]:
    """Return the outcomes of finished rollouts by id; reads several at a time."""
    outcomes: dict[str, RolloutOutcome] = {}
    limit = anyio.CapacityLimiter(_READERS)

    async def read(rollout: Rollout) -> None:
        async with limit:
            spans = (await store.query_spans(rollout.rollout_id, "latest")).items
            failed = rollout.status == "failed"
            attempt = await store.get_latest_attempt(rollout.rollout_id) if failed else None
        adapted = adapter.adapt(spans) if adapter is not None and spans else None
        what = failed_by(attempt) if attempt is not None else None
        outcomes[rollout.rollout_id] = RolloutOutcome(
            rollout, find_final_reward(spans), spans, adapted, infrastructure=what
        )

    async with anyio.create_task_group() as group:
        for rollout in rollouts:
            group.start_soon(read, rollout)
    return outcomes


def _reward_ends(
    batches: Sequence[BatchOutcome], given: tuple[float, float] | None
) -> tuple[float, float]:
    """Return the lowest and the highest possible reward of batches of one agent.

    Args:
        batches: The batches.
        given: The range that the caller declares; None takes what the scale of the rewards says.

    Raises:
        InvalidArgumentError: A reward is outside the given range.
    """
    rewards = [reward for one in batches for reward in one.rewards(missing=None)]
    if given is not None:
        return reward_ends(rewards, given)
    declared = (one.reward_range for one in batches if one.reward_range is not None)
    scale = RewardScale(next(declared, None))
    scale.learn(rewards)
    return scale.ends


def _widened(ends: tuple[float, float], missing: float | None) -> tuple[float, float]:
    """Return a range that includes what the caller lets a failure count."""
    return ends if missing is None else (min(ends[0], missing), max(ends[1], missing))


def _failures(ended: Iterable[Rollout]) -> str:
    failed = sum(rollout.status != "succeeded" for rollout in ended)
    return f"({failed} failed)" if failed else ""
