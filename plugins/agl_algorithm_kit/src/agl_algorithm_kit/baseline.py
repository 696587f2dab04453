"""Runs the datasets through the agent and logs each rollout: the algorithm of ``Trainer.dev``."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import anyio

from agl_algorithm_kit.batch import read_one, report_lost
from agl_algorithm_kit.cancelling import cancel_rollouts
from agl_algorithm_kit.config import BaselineConfig
from agl_core.algorithm import (
    BatchOutcome,
    FastAlgorithm,
    LLMProxyLike,
    ProgressReporter,
    RolloutOutcome,
    Run,
    add_llm,
    show_progress,
    with_llm_proxy,
)
from agl_core.emitter import find_final_reward
from agl_core.errors import InvalidArgumentError, SpansEvictedError
from agl_core.plugins import configured_by
from agl_core.types import (
    Attempt,
    Dataset,
    EnqueueRolloutRequest,
    Rollout,
    RolloutMode,
    RolloutStatus,
    Span,
)

if TYPE_CHECKING:
    from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

_QUEUING: list[RolloutStatus] = ["queuing", "requeuing"]


class Baseline(FastAlgorithm):
    """Sends every task to the agent, in order, and logs each rollout as it ends; learns nothing.

    Initial resources are stored as the snapshot ``default``, or ``NAME/default`` in a run of a
    name; with a proxy they contain its model. Options: :class:`BaselineConfig`.
    """

    @configured_by(BaselineConfig)
    def __init__(self, config: BaselineConfig) -> None:
        self.n_epochs = config.n_epochs
        self.train_split = config.train_split
        self.polling_interval = config.polling_interval
        self.max_queue_length = config.max_queue_length
        self.span_verbosity = config.span_verbosity

    def has_more_to_do(self, run: Run) -> bool:
        # Older versions kept no state.
        return isinstance(run.state, dict) and self.n_epochs > run.state.get("epochs", math.inf)

    @with_llm_proxy()
    async def run(
        self,
        llm_proxy: LLMProxyLike | None,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Run every task ``n_epochs`` times: the training tasks, then the validation tasks.

        Without a task it logs an error and returns.

        Raises:
            RunFailedError: The infrastructure failed every rollout of an epoch.
        """
        store, run = self.get_store(), self.get_run()
        tasks = [*_tasks("train", train_dataset), *_tasks("val", val_dataset)]
        if not tasks:
            logger.error("The baseline has nothing to do: give it a dataset")  # as version 0.3
            return
        resources = self.get_initial_resources()
        if llm_proxy is not None:
            resources = add_llm(resources or {}, llm_proxy)
        resources_id = None
        if resources is None:
            logger.info("No initial resources: tasks run with the latest in the store, if any")
        elif run.name:
            resources_id = await run.put_resources("default", resources)
        else:
            resources_id = (await store.update_resources("default", resources)).resources_id
        with show_progress("baseline", len(tasks) * self.n_epochs) as progress:
            for epoch in range(self.n_epochs):
                logger.info("Epoch %d of %d: %d tasks", epoch + 1, self.n_epochs, len(tasks))
                one = _Epoch(self, store, run, progress, done=epoch * len(tasks))
                await one.run(tasks, resources_id, f"epoch-{epoch}")
                self.report_step(epoch, one.metrics())
                if run.name:
                    await run.save({"epochs": epoch + 1})

    async def report(self, store: LightningStore, rollout: Rollout) -> float | None:
        """Log the results of a finished rollout: its attempts, their spans, the adapter's view.

        Returns:
            The final reward of its latest attempt, if there is one.
        """
        reward = None
        attempts = (await store.query_attempts(rollout.rollout_id)).items
        duration = (rollout.end_time or rollout.start_time) - rollout.start_time
        logger.info("%s: %s after %.2f s", rollout.rollout_id, rollout.status, duration)
        for attempt in attempts:
            spans = await _spans_of(store, attempt)
            reward = find_final_reward(spans)
            logger.info(
                "%s | attempt %d (%s): %s by %s, %d spans, reward %s",
                rollout.rollout_id,
                attempt.sequence_id,
                attempt.attempt_id,
                attempt.status,
                attempt.worker_id,
                len(spans),
                reward,
            )
            if self.span_verbosity != "none":
                for span in spans:
                    logger.info("%s |   %s", rollout.rollout_id, self._describe(span))
            if attempt is attempts[-1]:
                self._adapt(rollout.rollout_id, spans)
        return reward

    def _describe(self, span: Span) -> str:
        seconds = (span.end_time or 0.0) - (span.start_time or 0.0)
        shown = span.attributes if self.span_verbosity == "key_values" else list(span.attributes)
        return f"#{span.sequence_id} {span.name} {seconds:.3f} s {shown}"

    def _adapt(self, rollout_id: str, spans: Sequence[Span]) -> None:
        adapter = self.context.adapter
        if adapter is None:
            logger.warning("%s | no adapter to look at the spans with", rollout_id)
        elif spans:
            try:
                adapted, report = adapter.adapt_with_report(spans)
            except InvalidArgumentError as error:  # this rollout's; the others are run all the same
                logger.warning("%s | not adapted: %s", rollout_id, error)
                return
            logger.info("%s | adapted: %s", rollout_id, adapted)
            if report.spans:  # 0 for an adapter that does not count spans
                logger.info("%s | %s", rollout_id, report)


async def _spans_of(store: LightningStore, attempt: Attempt) -> Sequence[Span]:
    """Return the spans of an attempt, none if the store evicted them."""
    try:
        return (await store.query_spans(attempt.rollout_id, attempt.attempt_id)).items
    except SpansEvictedError as error:
        logger.warning("%s | %s", attempt.rollout_id, error)
        return ()


def _tasks(mode: RolloutMode, dataset: Dataset[Any] | None) -> list[tuple[RolloutMode, Any]]:
    return [] if dataset is None else [(mode, dataset[i]) for i in range(len(dataset))]


class _Epoch:
    """One pass over the tasks: fills the queue as it empties and reports rollouts as they end."""

    def __init__(
        self,
        baseline: Baseline,
        store: LightningStore,
        run: Run,
        progress: ProgressReporter,
        done: int,
    ) -> None:
        self._baseline = baseline
        self._store = store
        self._run = run
        self._progress = progress
        self._done = done
        self._outcomes: list[RolloutOutcome] = []
        self._open: set[str] = set()
        self._changed = anyio.Event()

    async def run(
        self, tasks: Sequence[tuple[RolloutMode, Any]], resources_id: str | None, name: str
    ) -> None:
        requests = [
            EnqueueRolloutRequest(input=task, mode=mode, resources_id=resources_id)
            for mode, task in tasks
        ]
        try:
            async with anyio.create_task_group() as listeners:
                if self._store.capabilities.get("events"):
                    listeners.start_soon(self._listen)
                async with anyio.create_task_group() as group:
                    for index, request in enumerate(requests):
                        await self._wait_for_room()
                        (rollout,) = await self._run.enqueue([request], batch=name, first=index)
                        self._open.add(rollout.rollout_id)
                        group.start_soon(self._follow, rollout.rollout_id)
                listeners.cancel_scope.cancel()
            report_lost("baseline", self._outcomes)
        finally:
            if not self._run.name:
                await cancel_rollouts(self._store, self._open)

    def metrics(self) -> dict[str, float]:
        """Figures of the pass; its mean reward counts failures as :class:`RewardScale` says.

        What the infrastructure failed is not in the mean.
        """
        batch = BatchOutcome(self._outcomes, reward_range=self._baseline.new_scale().declared)
        figures = {"rollouts": float(len(batch))}
        rewards = batch.rewards()
        if rewards and math.isfinite(mean := fmean(rewards)):
            figures["reward"] = mean
        return figures

    async def _listen(self) -> None:
        """Wake the coroutines that wait for the queue to shrink, and log status changes."""
        async for event in self._store.events():
            if event.kind == "rollout" and event.rollout_id in self._open:
                logger.debug("%s is %s", event.rollout_id, event.status)
            self._changed.set()
            self._changed = anyio.Event()

    async def _wait_for_room(self) -> None:
        while True:
            changed = self._changed  # read before the query, so that no change is missed
            queuing = await self._store.query_rollouts(status_in=_QUEUING, limit=0)
            if queuing.total <= self._baseline.max_queue_length:
                return
            with anyio.move_on_after(self._baseline.polling_interval):
                await changed.wait()

    async def _follow(self, rollout_id: str) -> None:
        (rollout,) = await self._run.wait_for_rollouts([rollout_id])
        self._open.discard(rollout_id)
        await self._baseline.report(self._store, rollout)
        outcome = await read_one(self._store, rollout, None)
        self._outcomes.append(replace(outcome, spans=()))  # of a whole epoch they may be gigabytes
        self._done += 1
        self._progress.update(self._done)
