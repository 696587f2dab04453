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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from agl_algorithm_kit.records import rollouts_of
from agl_core.algorithm import BatchOutcome, RolloutOutcome, Run, show_progress
from agl_core.emitter import find_final_reward
from agl_core.errors import RunFailedError
from agl_core.status import failed_by
from agl_core.types import (
    FINISHED_STATUSES,
    Dataset,
    EnqueueRolloutRequest,
    NamedResources,
    Rollout,
    RolloutConfig,
    RolloutMode,
)

if TYPE_CHECKING:
    from agl_core.adapter import Adapter
    from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

_PROGRESS_INTERVAL = 0.5  # seconds between two updates of the progress display
_READERS = 16  # outcomes read from the store at a time
_CANCEL_TIMEOUT = 10.0  # seconds to cancel the rollouts that are left


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
            a budget is spent, the rollouts in the queue are cancelled. Those that run are waited
            for: which rollouts are left out must not depend on how long they take.
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
                    withdrawn = await _withdraw(store, pending, adapter)
                    outcomes |= withdrawn
                    pending.difference_update(withdrawn)
    except BaseException:
        if not run.name:
            await cancel_rollouts(store, pending)
        raise
    if pending:
        outcomes |= await _withdraw(store, pending, adapter)
        cancelled = await cancel_rollouts(store, pending.difference(outcomes))
        outcomes |= await _read(store, cancelled, adapter)
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


async def _withdraw(
    store: LightningStore, rollout_ids: Iterable[str], adapter: Adapter[Any, Any] | None
) -> dict[str, RolloutOutcome]:
    """Cancel those of these rollouts that no runner has begun; return their outcomes by id."""
    queue = await store.query_rollouts(rollout_id_in=list(rollout_ids), status_in=["queuing"])
    cancelled = [
        await store.update_rollout(rollout.rollout_id, status="cancelled") for rollout in queue
    ]
    outcomes = await _read(store, cancelled, adapter)
    return {name: replace(one, started=False) for name, one in outcomes.items()}


async def _read(
    store: LightningStore, rollouts: Sequence[Rollout], adapter: Adapter[Any, Any] | None
) -> dict[str, RolloutOutcome]:
    """Return the outcomes of finished rollouts by id; reads several at a time."""
    outcomes: dict[str, RolloutOutcome] = {}
    limit = anyio.CapacityLimiter(_READERS)

    async def read(rollout: Rollout) -> None:
        async with limit:
            spans = (await store.query_spans(rollout.rollout_id, "latest")).items
            ended_badly = rollout.status in ("failed", "cancelled")
            attempt = await store.get_latest_attempt(rollout.rollout_id) if ended_badly else None
        adapted = adapter.adapt(spans) if adapter is not None and spans else None
        outcomes[rollout.rollout_id] = RolloutOutcome(
            rollout,
            find_final_reward(spans),
            spans,
            adapted,
            started=rollout.status != "cancelled" or attempt is not None,
            infrastructure=None if attempt is None else failed_by(attempt),
        )

    async with anyio.create_task_group() as group:
        for rollout in rollouts:
            group.start_soon(read, rollout)
    return outcomes


def _failures(ended: Iterable[Rollout]) -> str:
    failed = sum(rollout.status != "succeeded" for rollout in ended)
    return f"({failed} failed)" if failed else ""
