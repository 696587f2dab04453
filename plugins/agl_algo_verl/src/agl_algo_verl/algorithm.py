"""The algorithm ``verl``: trains a language model on agents' rollouts, with verl's trainer.

::

    trainer = Trainer(
        algorithm=VERL({
            "data": {"train_batch_size": 32},
            "actor_rollout_ref": {"model": {"path": "Qwen/Qwen3-1.7B"}, "rollout": {"n": 8}},
            "algorithm": {"adv_estimator": "grpo"},
        }),
        n_runners=16,
    )
    trainer.fit(agent, train_tasks, val_dataset=val_tasks)

The agent finds the model as the resource ``main_llm``. verl: Sheng et al., "HybridFlow: A Flexible
and Efficient RLHF Framework", EuroSys 2025 (https://arxiv.org/abs/2409.19256).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio import to_thread

from agl_algo_verl.agent_proxy import AgentProxy
from agl_algo_verl.checkpoints import RunCheckpoints, asks_for_more, cancel_leftovers
from agl_algo_verl.config import VERLConfig
from agl_algo_verl.requirements import check_requirements
from agl_algo_verl.rows import RowBuilder
from agl_algo_verl.settings import compose, is_cpu, sampling_of, trainer_table
from agl_algo_verl.training_run import TrainingRun
from agl_core.algorithm import Algorithm, Run
from agl_core.errors import ConfigError
from agl_core.plugins import configured_by
from agl_core.types import Dataset

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["VERL"]

T = TypeVar("T")


class VERL(Algorithm, Generic[T]):
    """Trains a language model with verl's V1 trainer.

    Tasks go to the store, runners execute them anywhere, and the spans of their model calls come
    back as rows of tokens. Agents call the model through a proxy in front of the servers that verl
    starts. Calls wait in the proxy while weights change.

    A named run (``Trainer(run=…)``, ``agl train --resume``), and any run that finds a checkpoint in
    ``trainer.default_local_dir``, resumes from the last checkpoint.

    Options: :class:`VERLConfig`.
    """

    @configured_by(VERLConfig)
    def __init__(self, config: VERLConfig) -> None:
        self.options = config

    async def check(self) -> Mapping[str, str]:
        check_requirements(
            fork=self.options.credit.type == "forked", cpu=is_cpu(self.options.config)
        )
        _environment(self.options.config)
        # Imported in a thread, because it imports verl.
        return await to_thread.run_sync(_describe, self.options)

    def has_more_to_do(self, run: Run) -> bool:
        return asks_for_more(run.state, trainer_table(self.options.config))

    async def run(
        self, train_dataset: Dataset[T] | None = None, val_dataset: Dataset[T] | None = None
    ) -> None:
        """Train to the end.

        Raises:
            MissingDependencyError: A library is missing or has an unsupported version.
            ConfigError: The configuration is invalid, or the checkpoints belong to another run.
            ValueError: There are no tasks, or the adapter does not make rows.
            RunFailedError: The agent or the configuration excludes every rollout of the first step.
            AgentError: Too many groups in a row had no usable rollout.
            LLMServerError: A rollout server died more often than ``max_restarts`` allows.
        """
        if train_dataset is None or not len(train_dataset):
            raise ValueError("VERL needs tasks in train_dataset")
        credit = self.options.credit.type
        check_requirements(fork=credit == "forked", cpu=is_cpu(self.options.config))
        builder = RowBuilder(
            self.options.aggregation, self.get_adapter(), by_turn=credit != "group"
        )
        run = self.get_run()
        environment = _environment(self.options.config, fork=True)
        # Importing verl takes many seconds and must not block the event loop.
        config = await to_thread.run_sync(compose, self.options, run.name)
        datasets: dict[str, Dataset[Any]] = {
            "train": train_dataset,
            "val": () if val_dataset is None else val_dataset,
        }
        agent_proxy = self._make_agent_proxy(config)
        builder.models = agent_proxy.models
        _check_batch_size(config, datasets)
        checkpoints = RunCheckpoints(
            run,
            _checkpoint_folder(config),
            config.actor_rollout_ref.model.path,
            resumes=config.trainer.resume_mode == "auto",
            epochs=config.trainer.total_epochs,
        )
        generation = await checkpoints.open()
        if run.name:
            await cancel_leftovers(self.get_store(), run.name)
        await agent_proxy.start()
        try:
            for restart in range(self.options.max_restarts + 1):
                batch = f"{generation}.{restart}"
                training = TrainingRun(
                    self,
                    self.options,
                    config,
                    datasets=datasets,
                    builder=builder,
                    run=run,
                    checkpoints=checkpoints,
                    agent_proxy=agent_proxy,
                    batch=batch,
                    environment=environment,
                )
                if await training.train(last=restart == self.options.max_restarts):
                    return
        finally:
            with anyio.CancelScope(shield=True):
                await agent_proxy.stop()

    def _make_agent_proxy(self, config: DictConfig) -> AgentProxy:
        rollout = config.actor_rollout_ref.rollout
        return AgentProxy(
            self.get_llm_proxy(),
            self.get_store(),
            name=self.options.model_name,
            path=config.actor_rollout_ref.model.path,
            train=sampling_of(rollout),
            val=sampling_of(rollout.val_kwargs),
            drain_timeout=self.options.drain_timeout,
        )


def _describe(options: VERLConfig) -> dict[str, str]:
    from agl_algo_verl.dry_run import describe

    return describe(options)


def _environment(config: Mapping[str, Any], *, fork: bool = False) -> dict[str, str]:
    """Return the environment variables for workers, and set them here before verl is imported.

    Raises:
        ConfigError: verl is already imported for another device.
    """
    if not is_cpu(config):
        return {}
    from agl_verl_cpu import fork_server
    from agl_verl_cpu.settings import ENVIRONMENT

    wanted = ENVIRONMENT["VERL_PLATFORM"]
    if "verl" in sys.modules and os.environ.get("VERL_PLATFORM") != wanted:
        raise ConfigError(
            "verl is already imported for another device: do not import it before, or set "
            + " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()),
            path="config.trainer.device",
        )
    os.environ.update(ENVIRONMENT)
    if fork and fork_server.available() and not os.environ.get("RAY_ADDRESS"):
        fork_server.start()  # it imports while this process does
    return dict(ENVIRONMENT)


def _check_batch_size(config: DictConfig, datasets: Mapping[str, Dataset[Any]]) -> None:
    """Check the batch size, and switch validation off if it has no tasks.

    Raises:
        ConfigError: A batch is larger than the dataset.
    """
    batch_size, tasks = config.data.train_batch_size, len(datasets["train"])
    if batch_size > tasks:
        raise ConfigError(
            f"a batch of {batch_size} needs more than the {tasks} tasks",
            path="config.data.train_batch_size",
        )
    if not len(datasets["val"]):
        config.trainer.val_before_train = False
        config.trainer.test_freq = -1


def _checkpoint_folder(config: DictConfig) -> Path:
    """Return the folder of checkpoints, made absolute; workers have other current folders."""
    folder = Path(config.trainer.default_local_dir).expanduser().absolute()
    config.trainer.default_local_dir = str(folder)
    return folder
