"""One session of verl's trainer: Ray, the queue, the trainer, and their end. Runs in a thread.

Importing this imports torch and verl.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo.utils import Role

from agl_algo_verl.bridge import Bridge
from agl_algo_verl.checkpoints import keep_metrics_file
from agl_algo_verl.config import VERLConfig
from agl_algo_verl.table import QueuePublisher
from agl_algo_verl.trainer import TRAINERS, PromptDispatcher
from agl_core.errors import LLMServerError

__all__ = ["LOST", "QueuePublisher", "run_session"]

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 20.0

LOST = (
    LLMServerError,
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
)
"""Errors that say that a process is gone, and not that something is wrong with what it did."""


def run_session(
    config: DictConfig,
    options: VERLConfig,
    bridge: Bridge,
    publisher: QueuePublisher,
    data_sources: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
) -> None:
    """Train to the end, from the last checkpoint if there is one.

    Args:
        config: verl's configuration, resolved.
        options: What is not verl's own.
        bridge: The way to the algorithm.
        publisher: Writes to the queue; closed here, before the queue is.
        data_sources: Names of the data sources of the tasks, by partition.
        environment: Environment variables that workers need.

    Raises:
        Exception: Whatever ends the training early; one of :data:`LOST` if a process is gone.
    """
    started = _start_ray(config, environment)
    try:
        _train(config, options, bridge, publisher, data_sources)
    except LOST as error:
        if getattr(error, "actor_init_failed", False):
            # It would fail again: a setting is wrong, or something is not installed.
            raise RuntimeError(f"a worker of verl did not start: {error}") from error
        if not started:
            # What is left of its actors lives on in a Ray that is not ours to stop.
            raise RuntimeError(f"a Ray that was there before lost a process: {error}") from error
        raise
    finally:
        _close(started)


def _train(
    config: DictConfig,
    options: VERLConfig,
    bridge: Bridge,
    publisher: QueuePublisher,
    data_sources: Mapping[str, Sequence[str]],
) -> None:
    tq.init(config.transfer_queue)
    trainer: Any = TRAINERS[config.trainer.v1.trainer_mode](
        config,
        options=options,
        bridge=bridge,
        data_sources=data_sources,
        workers=_workers(config),
    )
    finished = False
    try:
        trainer.init()
        bridge.check()
        _keep_metrics(config, trainer.global_steps)
        trainer.fit(PromptDispatcher(bridge))
        finished = True
    finally:
        bridge.finish()
        publisher.close(_CLOSE_SECONDS)
        tracking = getattr(trainer, "logger", None)
        if tracking is not None:
            tracking.finish(exit_code=0 if finished else 1)


def _start_ray(config: DictConfig, environment: Mapping[str, str]) -> bool:
    """Connect to Ray unless that was done; tell whether it was done here."""
    if ray.is_initialized():
        return False
    runtime: dict[str, Any] = get_ppo_ray_runtime_env(config)
    runtime.setdefault("env_vars", {}).update(environment, TRANSFER_QUEUE_ENABLE="1")
    arguments: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    given = arguments.pop("runtime_env", None) or {}
    merged: Any = OmegaConf.to_container(OmegaConf.merge(runtime, given))
    # Read by verl in this process, which is a worker's process in its own entry point.
    os.environ["TRANSFER_QUEUE_ENABLE"] = "1"
    ray.init(**arguments, runtime_env=merged)
    return True


def _close(started: bool) -> None:
    try:
        tq.close()
    except Exception as error:  # its actors may be what died; Ray's end takes the rest along
        logger.warning("TransferQueue did not close: %s", error)
    finally:
        if started:
            ray.shutdown()


def _workers(config: DictConfig) -> dict[Role, type]:
    """Return worker classes that stand in for verl's own."""
    if config.trainer.device != "cpu":
        return {}
    from agl_algo_verl.cpu.workers import (
        CPUActorRolloutRefWorker,
        CPUDetachActorWorker,
        CPUTrainingWorker,
    )

    separate = config.trainer.v1.trainer_mode == "separate_async"
    actor = CPUDetachActorWorker if separate else CPUActorRolloutRefWorker
    return {
        Role.Actor: actor,
        Role.ActorRollout: actor,
        Role.ActorRolloutRef: actor,
        Role.RefPolicy: actor,
        Role.Critic: CPUTrainingWorker,
    }


def _keep_metrics(config: DictConfig, step: int) -> None:
    loggers = config.trainer.logger
    if "file" not in ([loggers] if isinstance(loggers, str) else loggers):
        return
    root = Path(os.environ.get("VERL_FILE_LOGGER_ROOT", ".")).expanduser()
    default = root / config.trainer.project_name / f"{config.trainer.experiment_name}.jsonl"
    keep_metrics_file(Path(os.environ.get("VERL_FILE_LOGGER_PATH") or default), step)
