"""One life of trainer and servers, as the algorithm's loop sees it.

The trainer runs in a thread (:mod:`agl_algo_verl.session`). Here is what it is fed with and watched
by: groups of rollouts, the gate before its servers, their health.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
from anyio import to_thread

from agl_algo_verl.bridge import Bridge
from agl_algo_verl.checkpoints import RunKeeper
from agl_algo_verl.feeder import Feeder, FeederSettings, Prompt
from agl_algo_verl.gate import Gate
from agl_algo_verl.health import HealthWatch
from agl_algo_verl.judging import Limits
from agl_algo_verl.rows import RowBuilder
from agl_core.algorithm import Run
from agl_core.types import Dataset

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agl_algo_verl.algorithm import VERL

__all__ = ["RESOURCE", "Life"]

logger = logging.getLogger(__name__)

RESOURCE = "main_llm"
"""Name of the resource that agents find the model under."""


class Life:
    """One life of trainer and servers.

    Args:
        algorithm: Whose store, resources and options these are.
        config: verl's configuration.
        datasets: Tasks by partition.
        builder: Makes rows of spans.
        run: The run, with a name or without.
        keeper: Keeps the run and its checkpoints together.
        gate: The way to the servers.
        batch: Prefix of the names of batches, unique in the run.
        environment: Environment variables that workers need.
    """

    def __init__(
        self,
        algorithm: VERL[Any],
        config: DictConfig,
        datasets: Mapping[str, Dataset[Any]],
        builder: RowBuilder,
        run: Run,
        keeper: RunKeeper,
        gate: Gate,
        batch: str,
        environment: Mapping[str, str],
    ) -> None:
        self._algorithm = algorithm
        self._options = algorithm.options
        self._config = config
        self._datasets = datasets
        self._builder = builder
        # Rollouts of a run are looked after: one whose runner died is tried again.
        self._run = run if run.name else Run(algorithm.get_store(), f"verl-{uuid4().hex[:8]}")
        self._keeper = keeper
        self._gate = gate
        self._batch = batch
        self._environment = environment
        self._store = algorithm.get_store()
        self._failure: BaseException | None = None

    async def train(self, *, last: bool) -> bool:
        """Train to the end; tell whether that was reached, or a process died and may be replaced.

        Raises:
            Exception: What ended the training early, unless it is worth another try.
        """
        gate = self._gate
        await gate.pause()  # until there are servers
        # Imported here, and in a thread: this is what brings torch and verl along.
        lost, publisher, run_session = await to_thread.run_sync(_load, self._datasets)
        resources = {name: await self._put_resources(name) for name in ("val", "train")}
        health = HealthWatch(self._options.health_interval)
        queue: asyncio.Queue[Prompt] = asyncio.Queue()

        def submit(prompts: Sequence[Prompt]) -> None:
            for prompt in prompts:
                queue.put_nowait(prompt)

        async def serve(addresses: Sequence[str]) -> None:
            await gate.serve(addresses)
            health.watch(addresses)

        async def finish() -> None:
            groups.cancel()  # or they would take note of what is cancelled now
            await feeder.cancel()
            await gate.shut()

        groups = anyio.CancelScope()

        feeder = Feeder(
            self._store,
            self._run,
            self._options,
            self._feeder_settings(),
            datasets=self._datasets,
            resources=resources,
            builder=self._builder,
            publisher=publisher,
            changed=lambda: bridge.notify(),
            suspect=health.suspect,
        )
        bridge = Bridge(
            asyncio.get_running_loop(),
            submit=submit,
            serve=serve,
            close=gate.close,
            open=gate.open,
            take_metrics=feeder.take_metrics,
            step_done=self._algorithm.report_step,
            saved=self._keeper.saved,
            finish=finish,
        )
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._work, bridge, feeder, queue, groups)
                group.start_soon(self._guard, bridge, health)
                try:
                    await to_thread.run_sync(
                        run_session,
                        self._config,
                        self._options,
                        bridge,
                        publisher,
                        _data_sources(self._datasets),
                        self._environment,
                    )
                except Exception as error:
                    self._failure = error
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await feeder.cancel()
        if self._failure is None:
            return True
        if last or not isinstance(self._failure, lost):
            raise self._failure
        logger.warning(
            "training broke off, and goes on from %s: %s",
            self._keeper.next_start,
            str(self._failure).strip().split("\n", 1)[0],
        )
        return False

    async def _work(
        self,
        bridge: Bridge,
        feeder: Feeder,
        queue: asyncio.Queue[Prompt],
        scope: anyio.CancelScope,
    ) -> None:
        """Run a task per group, until the scope is cancelled."""

        async def work(prompt: Prompt) -> None:
            try:
                await feeder.run_group(prompt)
            except Exception as error:
                bridge.fail(error)

        with scope:
            async with anyio.create_task_group() as groups:
                while True:
                    groups.start_soon(work, await queue.get())

    async def _guard(self, bridge: Bridge, health: HealthWatch) -> None:
        """Have the trainer stop waiting when a server is gone, or when the run is stopped."""
        try:
            await health.run()
        except Exception as error:
            bridge.fail(error)
        finally:
            bridge.fail(asyncio.CancelledError("the run was stopped"))

    async def _put_resources(self, partition: str) -> str:
        resources = {
            **(self._algorithm.get_initial_resources() or {}),
            RESOURCE: self._gate.resource(partition),
        }
        return await self._run.put_resources(f"{self._batch}-{partition}", resources)

    def _feeder_settings(self) -> FeederSettings:
        config = self._config
        rollout = config.actor_rollout_ref.rollout
        correction = config.algorithm.get("rollout_correction") or {}
        return FeederSettings(
            n_train=rollout.n,
            n_val=rollout.val_kwargs.n,
            limits=Limits(
                max_prompt=config.data.max_prompt_length,
                max_response=config.data.max_response_length,
                needs_logprobs=bool(
                    rollout.calculate_log_probs or correction.get("bypass_mode", False)
                ),
            ),
            batch=self._batch,
        )


def _data_sources(datasets: Mapping[str, Dataset[Any]]) -> dict[str, list[str]]:
    """Return the ``data_source`` of each task, by which validation is reported; else ``agent``."""
    found: dict[str, list[str]] = {}
    for name, dataset in datasets.items():
        tasks = (dataset[index] for index in range(len(dataset)))
        found[name] = [
            str(task.get("data_source", "agent")) if isinstance(task, Mapping) else "agent"
            for task in tasks
        ]
    return found


def _load(datasets: Mapping[str, Dataset[Any]]) -> tuple[Any, Any, Any]:
    from agl_algo_verl.session import LOST, QueuePublisher, run_session

    return LOST, QueuePublisher(_data_sources(datasets), filler=0), run_session
