"""One run of trainer and servers, from their start to their end or failure.

The trainer runs in a thread (:mod:`agl_algo_verl.session`). The event loop runs the groups of
rollouts, the proxy in front of the servers, and the servers' health checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
from anyio import to_thread

from agl_algo_verl.agent_proxy import AgentProxy
from agl_algo_verl.bridge import Bridge
from agl_algo_verl.checkpoints import RunCheckpoints
from agl_algo_verl.config import VERLConfig
from agl_algo_verl.decisions import Limits
from agl_algo_verl.health import HealthWatch
from agl_algo_verl.overrides import first_line
from agl_algo_verl.rollout_groups import GroupRunner, GroupSettings, Prompt
from agl_algo_verl.rows import RowBuilder
from agl_algo_verl.settings import sampling_of
from agl_algorithm_kit import StoredRun
from agl_core.algorithm import Algorithm, Run
from agl_core.types import Dataset

if TYPE_CHECKING:
    from omegaconf import DictConfig


__all__ = ["RESOURCE", "TrainingRun"]

logger = logging.getLogger(__name__)

RESOURCE = "main_llm"
"""Name of the model among the agents' resources."""


class TrainingRun:
    """One run of trainer and servers.

    Args:
        algorithm: Gives the store and the initial resources, and receives the metrics.
        options: Options of the algorithm.
        config: verl's configuration.
        datasets: Tasks by partition.
        builder: Makes rows of spans.
        run: The run, with a name or without.
        checkpoints: Records the run's checkpoints.
        agent_proxy: Proxy in front of the servers.
        batch: Prefix of the names of batches, unique in the run.
        environment: Environment variables for workers.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        options: VERLConfig,
        config: DictConfig,
        *,
        datasets: Mapping[str, Dataset[Any]],
        builder: RowBuilder,
        run: Run,
        checkpoints: RunCheckpoints,
        agent_proxy: AgentProxy,
        batch: str,
        environment: Mapping[str, str],
    ) -> None:
        self._algorithm = algorithm
        self._options = options
        self._config = config
        self._datasets = datasets
        self._builder = builder
        # Only a named run retries rollouts whose runner died, so this one gets a name.
        self._run = run if run.name else StoredRun(algorithm.get_store(), f"verl-{uuid4().hex[:8]}")
        self._checkpoints = checkpoints
        self._agent_proxy = agent_proxy
        self._batch = batch
        self._environment = environment
        self._store = algorithm.get_store()
        self._failure: BaseException | None = None

    async def train(self, *, last: bool) -> bool:
        """Train; return True at the end, or False if a process died and a restart is allowed.

        Args:
            last: Whether no restart is left.

        Raises:
            Exception: The failure that ended the training, if it does not warrant a restart.
        """
        agent_proxy = self._agent_proxy
        await agent_proxy.pause()  # until the servers are ready
        # Imported late and in a thread, because it imports torch and verl.
        lost, publisher, run_session = await to_thread.run_sync(_load, self._datasets)
        resources = {name: await self._put_resources(name) for name in ("val", "train")}
        health = HealthWatch(self._options.health_interval)
        queue: asyncio.Queue[Prompt] = asyncio.Queue()

        def submit(prompts: Sequence[Prompt]) -> None:
            for prompt in prompts:
                queue.put_nowait(prompt)

        async def serve(addresses: Sequence[str]) -> None:
            await agent_proxy.serve(addresses)
            health.watch(addresses)

        async def finish() -> None:
            groups.cancel()  # otherwise they would count the rollouts that are cancelled now
            await runner.cancel()
            await agent_proxy.shut()

        groups = anyio.CancelScope()

        runner = GroupRunner(
            self._store,
            self._run,
            self._options,
            self._group_settings(),
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
            close=agent_proxy.close,
            open=agent_proxy.open,
            take_metrics=runner.take_metrics,
            step_done=self._algorithm.report_step,
            saved=self._checkpoints.saved,
            finish=finish,
        )
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._work, bridge, runner, queue, groups)
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
                await runner.cancel()
        if self._failure is None:
            return True
        if last or not isinstance(self._failure, lost):
            raise self._failure
        logger.warning(
            "training failed and resumes from %s: %s",
            self._checkpoints.next_start,
            first_line(self._failure),
        )
        return False

    async def _work(
        self,
        bridge: Bridge,
        runner: GroupRunner,
        queue: asyncio.Queue[Prompt],
        scope: anyio.CancelScope,
    ) -> None:
        """Run one asyncio task per group until the scope is cancelled."""

        async def work(prompt: Prompt) -> None:
            try:
                await runner.run_group(prompt)
            except Exception as error:
                bridge.fail(error)

        with scope:
            async with anyio.create_task_group() as groups:
                while True:
                    groups.start_soon(work, await queue.get())

    async def _guard(self, bridge: Bridge, health: HealthWatch) -> None:
        """End the trainer's wait when a server is gone or the run is stopped."""
        try:
            await health.run()
        except Exception as error:
            bridge.fail(error)
        finally:
            bridge.fail(asyncio.CancelledError("the run was stopped"))

    async def _put_resources(self, partition: str) -> str:
        resources = {
            **(self._algorithm.get_initial_resources() or {}),
            RESOURCE: self._agent_proxy.resource(partition),
        }
        return await self._run.put_resources(f"{self._batch}-{partition}", resources)

    def _group_settings(self) -> GroupSettings:
        config = self._config
        rollout = config.actor_rollout_ref.rollout
        correction = config.algorithm.get("rollout_correction") or {}
        return GroupSettings(
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
            tasks=config.data.train_batch_size,
            sampling=sampling_of(rollout),
            normalise=bool(config.algorithm.get("norm_adv_by_std_in_grpo", True)),
        )


def _data_sources(datasets: Mapping[str, Dataset[Any]]) -> dict[str, list[str]]:
    """Return each task's ``data_source``, which groups validation metrics; default ``agent``."""
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
