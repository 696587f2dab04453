"""VERL: a language model learns from what agents did, on verl's trainer.

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
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import anyio
from anyio import to_thread

from agl_algo_verl.checkpoints import RunKeeper, cancel_leftovers
from agl_algo_verl.config import VERLConfig
from agl_algo_verl.gate import Gate
from agl_algo_verl.life import Life
from agl_algo_verl.requirements import check_requirements
from agl_algo_verl.rows import RowBuilder
from agl_algo_verl.settings import compose, is_cpu
from agl_core.algorithm import Algorithm
from agl_core.errors import ConfigError
from agl_core.types import Dataset

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["VERL"]

T = TypeVar("T")


class VERL(Algorithm, Generic[T]):
    """Trains a language model with verl's V1 trainer.

    Tasks go to the store, runners anywhere do them, and the spans of their model calls come back as
    rows of tokens. Agents call the model through a proxy, which stands before the servers that verl
    itself starts, and which keeps them waiting while weights change.

    In a run with a name (``Trainer(run=…)``, ``agl train --resume``), and wherever there is a
    checkpoint in ``trainer.default_local_dir``, it goes on from the last checkpoint.

    Args:
        config: verl's own configuration, as a plain dict over its Hydra defaults. A key it does not
            know is an error; ``+key`` adds one, as on its command line.
        config_name: Which of verl's configurations gives the defaults.
        model_name: What agents call the model; None: the last part of its path.
        aggregation: Rows to train on: ``transition``, one per model call, or ``trajectory``, one
            per chain of calls that continue each other token by token.
        advantage_level: What counts once in a group's mean reward: ``rollout``, or ``row``.
        loss_level: What weighs the same in the loss: ``token`` leaves it to verl's
            ``loss_agg_mode``; ``rollout`` takes the mean over rollouts of their tokens' mean.
        on_failed: What becomes of a rollout that failed, ran out of time, or has nothing to train
            on: ``retry``, ``drop`` or ``penalise``.
        on_overlong: What becomes of rows over ``data.max_prompt_length`` or
            ``data.max_response_length``: ``retry`` the rollout, ``drop`` the rows, or cut responses
            and ``penalise`` the rollout.
        penalty: Reward of a rollout that is penalised.
        missing_reward: Reward of a rollout that gave none; None: it counts as failed.
        max_retries: How often a rollout is tried again before it is dropped.
        min_group_size: A group with fewer rollouts left is dropped as a whole, and another task
            takes its place.
        max_failed_groups: How many groups may be dropped in a row before the run is given up.
        rollout_timeout: Seconds that one attempt of a rollout may take; None is no limit.
        drain_timeout: Seconds that calls in flight may take to end before weights change.
        health_interval: Seconds between two looks at the rollout servers.
        max_restarts: How often a trainer or a server that died is started again, from the last
            checkpoint.

    Raises:
        ConfigError: An option is out of its range.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        config_name: str = "ppo_trainer",
        model_name: str | None = None,
        aggregation: Literal["transition", "trajectory"] = "transition",
        advantage_level: Literal["rollout", "row"] = "rollout",
        loss_level: Literal["token", "rollout"] = "token",
        on_failed: Literal["retry", "drop", "penalise"] = "retry",
        on_overlong: Literal["retry", "drop", "penalise"] = "drop",
        penalty: float = 0.0,
        missing_reward: float | None = 0.0,
        max_retries: int = 2,
        min_group_size: int = 2,
        max_failed_groups: int = 64,
        rollout_timeout: float | None = 1200.0,
        drain_timeout: float = 60.0,
        health_interval: float = 10.0,
        max_restarts: int = 2,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in VERLConfig.model_fields}
        given["config"] = dict(config or {})
        self.options = _options(given)

    async def run(
        self, train_dataset: Dataset[T] | None = None, val_dataset: Dataset[T] | None = None
    ) -> None:
        """Train to the end.

        Raises:
            MissingDependencyError: A library is missing or of a wrong version.
            ConfigError: The configuration is wrong, or the checkpoints are another run's.
            ValueError: There are no tasks, or the adapter makes no rows.
            AgentError: Nothing that agents do can be trained on.
            LLMServerError: A rollout server died more often than it may.
        """
        if train_dataset is None or not len(train_dataset):
            raise ValueError("VERL needs tasks in train_dataset")
        check_requirements()
        builder = RowBuilder(self.options.aggregation, self.get_adapter())
        run = self.get_run()
        environment = _environment(self.options.config)
        # Importing verl takes many seconds, in which the loop must go on.
        config = await to_thread.run_sync(compose, self.options, run.name)
        datasets: dict[str, Dataset[Any]] = {
            "train": train_dataset,
            "val": () if val_dataset is None else val_dataset,
        }
        _fit_to_tasks(config, datasets)
        keeper = RunKeeper(
            run,
            _checkpoint_folder(config),
            config.actor_rollout_ref.model.path,
            resumes=config.trainer.resume_mode == "auto",
        )
        generation = await keeper.open()
        if run.name:
            await cancel_leftovers(self.get_store(), run.name)
        gate = self._gate(config)
        await gate.start()
        try:
            for restart in range(self.options.max_restarts + 1):
                batch = f"{generation}.{restart}"
                life = Life(self, config, datasets, builder, run, keeper, gate, batch, environment)
                if await life.train(last=restart == self.options.max_restarts):
                    return
        finally:
            with anyio.CancelScope(shield=True):
                await gate.stop()

    def _gate(self, config: DictConfig) -> Gate:
        rollout = config.actor_rollout_ref.rollout
        return Gate(
            self.get_llm_proxy(),
            self.get_store(),
            name=self.options.model_name,
            path=config.actor_rollout_ref.model.path,
            train=_sampling(rollout),
            val=_sampling(rollout.val_kwargs),
            drain_timeout=self.options.drain_timeout,
        )


def _options(given: Mapping[str, Any]) -> VERLConfig:
    from pydantic import ValidationError

    try:
        return VERLConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(first["msg"], path=".".join(map(str, first["loc"]))) from None


def _environment(config: Mapping[str, Any]) -> dict[str, str]:
    """Return what workers need in their environment, and set it here, before verl is imported.

    Raises:
        ConfigError: verl was imported for another device.
    """
    if not is_cpu(config):
        return {}
    from agl_algo_verl.cpu.settings import ENVIRONMENT

    wanted = ENVIRONMENT["VERL_PLATFORM"]
    if "verl" in sys.modules and os.environ.get("VERL_PLATFORM") != wanted:
        raise ConfigError(
            "verl was imported for another device already: import nothing of verl before, or set "
            + " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()),
            path="config.trainer.device",
        )
    os.environ.update(ENVIRONMENT)
    return dict(ENVIRONMENT)


def _fit_to_tasks(config: DictConfig, datasets: Mapping[str, Dataset[Any]]) -> None:
    """Check batch sizes, and leave out validation without tasks.

    Raises:
        ConfigError: A batch is larger than the dataset.
    """
    wanted, there = config.data.train_batch_size, len(datasets["train"])
    if wanted > there:
        raise ConfigError(
            f"a batch of {wanted} cannot be made of {there} tasks",
            path="config.data.train_batch_size",
        )
    if not len(datasets["val"]):
        config.trainer.val_before_train = False
        config.trainer.test_freq = -1


def _checkpoint_folder(config: DictConfig) -> Path:
    """Return where checkpoints go, which is made absolute: workers have other current folders."""
    folder = Path(config.trainer.default_local_dir).expanduser().absolute()
    config.trainer.default_local_dir = str(folder)
    return folder


def _sampling(section: Any) -> dict[str, Any]:
    """Return sampling parameters as OpenAI's protocol has them."""
    parameters: dict[str, Any] = {"temperature": float(section.temperature)}
    if section.top_p < 1:
        parameters["top_p"] = float(section.top_p)
    return parameters
