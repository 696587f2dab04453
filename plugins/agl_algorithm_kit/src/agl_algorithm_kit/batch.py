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
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from agl_algorithm_kit.cancelling import cancel_all_rollouts, cancel_rollouts
from agl_algorithm_kit.records import rollouts_of
from agl_core.algorithm import BatchOutcome, RewardRange, RolloutOutcome, Run, show_progress
from agl_core.emitter import find_final_reward
from agl_core.errors import RunFailedError, SpansEvictedError
from agl_core.status import failed_by
from agl_core.types import (
    FINISHED_STATUSES,
    QUEUING_STATUSES,
    Dataset,
    EnqueueRolloutRequest,
    NamedResources,
    Rollout,
    RolloutConfig,
    RolloutMode,
    Span,
)
from agl_core.waits import REMIND_SECONDS, SILENT_SECONDS

if TYPE_CHECKING:
    from agl_core.adapter import Adapter
    from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

_PROGRESS_INTERVAL = 0.5  # seconds between two updates of the progress display
_READERS = 16  # outcomes read from the store at a time
_LOOKED_AT = 1000  # rollouts of a long queue: runners take them from its head
_EVICTION = "eviction of their spans"  # what hides the reward of a rollout that succeeded


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
        StoreUnavailableError: The store does not answer.
        Exception: What the adapter raised.
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
            a budget is spent, the rollouts in the queue are cancelled. Those that run are waited
            for: which rollouts are left out must not depend on how long they take.

    Raises:
        Exception: As there.
    """
    run = run or Run(store)
    enqueued = await run.enqueue(requests, batch=name)
    pending = dict.fromkeys(rollout.rollout_id for rollout in enqueued)
    ended: dict[str, Rollout] = {}
    outcomes: dict[str, RolloutOutcome] = {}
    began = time.monotonic()
    deadline = math.inf if timeout is None else began + timeout
    look_at = began + SILENT_SECONDS
    try:
        with show_progress(description, len(enqueued)) as progress:
            while pending and (left := deadline - time.monotonic()) > 0:
                # Returns the moment all are done; the slice is for the progress display.
                done = await run.wait_for_rollouts(list(pending), min(left, _PROGRESS_INTERVAL))
                ended.update((rollout.rollout_id, rollout) for rollout in done)
                pending = _without(pending, ended)
                progress.update(len(ended), _failures(ended.values()))
                if not ended and time.monotonic() > look_at:
                    look_at = time.monotonic() + REMIND_SECONDS
                    await _tell_of_unclaimed(store, pending, description)
                # While the others run, so that the end of the batch does not wait for all of them.
                found = await _read(store, done, adapter)
                outcomes |= found
                if is_enough is not None and found and is_enough(list(found.values())):
                    outcomes |= await _withdraw(store, pending, adapter)
                    pending = _without(pending, outcomes)
        if pending:
            last = await _read(store, await cancel_all_rollouts(store, pending), adapter)
            outcomes |= last
            if late := sum(one.rollout.status == "cancelled" for one in last.values()):
                logger.warning("%s: %d of %d did not end in time", description, late, len(enqueued))
    except BaseException:
        if not run.name:
            await cancel_rollouts(store, pending)
        raise
    report_lost(description, list(outcomes.values()))
    return BatchOutcome(
        [outcomes[rollout.rollout_id] for rollout in enqueued],
        enqueued[0].resources_id if enqueued else None,
        run.reward_range,
    )


async def _tell_of_unclaimed(
    store: LightningStore, rollout_ids: Iterable[str], description: str
) -> None:
    """Say that no runner has begun any of these rollouts, if that is so."""
    ids = list(rollout_ids)
    some = ids[:_LOOKED_AT]
    queue = await store.query_rollouts(
        rollout_id_in=some, status_in=sorted(QUEUING_STATUSES), limit=1
    )
    if queue.total == len(some):
        logger.info(
            "Waiting for a runner: none has claimed any of %d %s yet", len(ids), description
        )


async def read_batch(
    store: LightningStore,
    run: str,
    batch: str | None = None,
    *,
    reward_range: tuple[float, float] | None = None,
) -> BatchOutcome:
    """Read the rollouts of a named run that have ended, in the order of their enrolment.

    Rollouts that succeeded are left out if the store evicted their spans: nobody knows their
    rewards. A warning says how many they are.

    Args:
        store: The store.
        run: Name of the run.
        batch: Name of one of its batches; None reads all of them.
        reward_range: Lowest and highest possible reward, if the user declared them: the store does
            not keep it.

    Returns:
        The outcomes; their ``resources_id`` is None if the rollouts had different ones.

    Raises:
        ConfigError: The range is not a pair of finite numbers, the lower first.
        StoreUnavailableError: The store does not answer.
    """
    declared = RewardRange.of(reward_range)
    found: list[Rollout] = []
    async for (name, _), rollout in rollouts_of(store, run):
        if batch in (None, name) and rollout.status in FINISHED_STATUSES:
            found.append(rollout)
    outcomes = await _read(store, found, None)
    read = [outcomes[rollout.rollout_id] for rollout in found]
    known = [one for one in read if one.infrastructure != _EVICTION]
    if evicted := len(found) - len(known):
        logger.warning("%d of %d are left out after the %s", evicted, len(found), _EVICTION)
    snapshots = {rollout.resources_id for rollout in found}
    return BatchOutcome(
        known,
        snapshots.pop() if len(snapshots) == 1 else None,
        declared,
    )


async def _withdraw(
    store: LightningStore, rollout_ids: Iterable[str], adapter: Adapter[Any, Any] | None
) -> dict[str, RolloutOutcome]:
    """Cancel those of these rollouts that no runner has begun; return their outcomes by id."""
    queue = await store.query_rollouts(rollout_id_in=list(rollout_ids), status_in=["queuing"])
    cancelled = await cancel_rollouts(store, [rollout.rollout_id for rollout in queue])
    outcomes = await _read(store, cancelled, adapter)
    for name, one in outcomes.items():
        if one.started and one.rollout.status == "cancelled":
            # A runner claimed it meanwhile. What has begun is measured, so it runs again.
            await store.update_rollout(name, status="requeuing")
    return {name: one for name, one in outcomes.items() if not one.started}


async def _read(
    store: LightningStore, rollouts: Sequence[Rollout], adapter: Adapter[Any, Any] | None
) -> dict[str, RolloutOutcome]:
    """Return the outcomes of finished rollouts by id; reads several at a time.

    Raises:
        Exception: The first error of the store or the adapter; others are logged.
    """
    outcomes: dict[str, RolloutOutcome] = {}
    limit = anyio.CapacityLimiter(_READERS)

    async def read(rollout: Rollout) -> None:
        async with limit:
            outcomes[rollout.rollout_id] = await read_one(store, rollout, adapter)

    try:
        async with anyio.create_task_group() as group:
            for rollout in rollouts:
                group.start_soon(read, rollout)
    except ExceptionGroup as errors:
        for other in errors.exceptions[1:]:
            logger.error("Another failure", exc_info=other)
        raise errors.exceptions[0] from None
    return outcomes


async def read_one(
    store: LightningStore, rollout: Rollout, adapter: Adapter[Any, Any] | None
) -> RolloutOutcome:
    """Return the outcome of a finished rollout; without its spans if the store evicted them."""
    spans: Sequence[Span] = ()
    is_evicted = False
    try:
        spans = (await store.query_spans(rollout.rollout_id, "latest")).items
    except SpansEvictedError:
        is_evicted = True
    if rollout.status == "succeeded":
        # A reward that nobody knows is not a missing one, which would count as a failure.
        started, infrastructure = True, _EVICTION if is_evicted else None
    else:
        attempt = await store.get_latest_attempt(rollout.rollout_id)
        started = rollout.status != "cancelled" or attempt is not None
        infrastructure = None if attempt is None else failed_by(attempt)
    return RolloutOutcome(
        rollout,
        find_final_reward(spans),
        spans,
        adapter.adapt(spans) if adapter is not None and spans else None,
        started=started,
        infrastructure=infrastructure,
    )


def report_lost(description: str, outcomes: Sequence[RolloutOutcome]) -> None:
    """Warn of rollouts that are not scored.

    Raises:
        RunFailedError: There are no others.
    """
    lost = Counter(one.infrastructure for one in outcomes if one.infrastructure)
    for what, count in lost.items():
        text = "%s: %d of %d failed by the %s and are not scored"
        logger.warning(text, description, count, len(outcomes), what)
    if not lost or lost.total() < len(outcomes):
        return
    what = next(iter(lost))
    hint = "also when they were repeated; the attempts' errors say how"
    if what == _EVICTION:
        hint = "so no reward is known; let the store keep more, or choose one on disk"
    raise RunFailedError(
        f"{description}: all {len(outcomes)} rollouts failed by the {what}, {hint}"
    )


def _without(names: Iterable[str], others: Container[str]) -> dict[str, None]:
    """Return the names that are not among others, in their order."""
    return dict.fromkeys(name for name in names if name not in others)


def _failures(ended: Iterable[Rollout]) -> str:
    failed = sum(rollout.status != "succeeded" for rollout in ended)
    return f"({failed} failed)" if failed else ""
