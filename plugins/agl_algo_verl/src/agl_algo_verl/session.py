"""One session of verl's trainer: start and end of Ray, the queue and the trainer. For a thread.

Importing this module imports torch and verl.
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
from agl_algo_verl.queue_rows import QueuePublisher
from agl_algo_verl.settings import is_cpu
from agl_algo_verl.trainer import TRAINERS, PromptDispatcher
from agl_core.errors import LLMServerError

__all__ = ["LOST", "QueuePublisher", "run_session"]

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 20.0
"""Longest wait until the last metrics are sent, in seconds; a tracker may be away."""

LOST = (
    LLMServerError,
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
)
"""Errors that mean that a process died; a restart can help against these only."""


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
        options: Options of the algorithm.
        bridge: Interface to the algorithm.
        publisher: Writes to the queue; closed here before the queue.
        data_sources: Data sources of the tasks, by partition.
        environment: Environment variables for workers.

    Raises:
        Exception: The failure that ended the training; one of :data:`LOST` if a process died.
    """
    started = _start_ray(config, environment)
    try:
        _train(config, options, bridge, publisher, data_sources)
    except LOST as error:
        if getattr(error, "actor_init_failed", False):
            # A restart would fail again: a setting is wrong, or a package is missing.
            raise RuntimeError(f"a worker of verl did not start: {error}") from error
        if not started:
            # The remaining actors live in a Ray that this process did not start and must not stop.
            raise RuntimeError(f"the existing Ray cluster lost a process: {error}") from error
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
    """Connect to Ray unless it is connected; return whether this call did."""
    if ray.is_initialized():
        return False
    runtime: dict[str, Any] = get_ppo_ray_runtime_env(config)
    runtime.setdefault("env_vars", {}).update(environment, TRANSFER_QUEUE_ENABLE="1")
    arguments: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    given = arguments.pop("runtime_env", None) or {}
    merged: Any = OmegaConf.to_container(OmegaConf.merge(runtime, given))
    # verl also reads it in this process, which is a Ray worker in verl's own entry point.
    os.environ["TRANSFER_QUEUE_ENABLE"] = "1"
    sized = any(arguments.get(name) is not None for name in ("num_cpus", "num_gpus"))
    if sized and "address" not in arguments and not os.environ.get("RAY_ADDRESS"):
        # Ray would join any cluster that runs on this machine, and then refuse the sizes.
        arguments["address"] = "local"
    if is_cpu(config) and arguments.get("address") == "local":
        from agl_verl_cpu import fork_server

        if fork_server.available():
            # Only on this machine: the fork server serves no others.
            merged["py_executable"] = merged.get("py_executable") or fork_server.start()
    ray.init(**arguments, runtime_env=merged)
    return True


def _close(started: bool) -> None:
    try:
        tq.close()
    except Exception as error:  # its actors may have died; ray.shutdown() ends the others
        logger.warning("TransferQueue did not close: %s", error)
    finally:
        if started:
            ray.shutdown()


def _workers(config: DictConfig) -> dict[Role, type]:
    """Return the worker classes that replace verl's own."""
    if config.trainer.device != "cpu":
        return {}
    from agl_verl_cpu.workers import (
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
