"""verl's workers and FSDP engines on a CPU: gloo instead of NCCL, and no pinned memory."""

from __future__ import annotations

from typing import Any

import torch
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import (
    FSDPEngineWithLMHead,
    FSDPEngineWithValueHead,
)
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

import agl_verl_cpu.rollout  # noqa: F401 -- registers the rollout server in each worker

__all__ = [
    "CPUActorRolloutRefWorker",
    "CPUDetachActorWorker",
    "CPUEngineWithLMHead",
    "CPUEngineWithValueHead",
    "CPUTrainingWorker",
]


class CPUTrainingWorker(TrainingWorker):
    """Initialises gloo first; verl's default names the device twice, which torch refuses."""

    def __init__(self, config: Any) -> None:
        initialize_global_process_group_ray(backend="cpu:gloo")
        super().__init__(config)


class CPUActorRolloutRefWorker(ActorRolloutRefWorker):
    """Actor, reference and rollout, with workers that use gloo."""

    actor_worker_cls = CPUTrainingWorker
    ref_worker_cls = CPUTrainingWorker


class CPUDetachActorWorker(DetachActorWorker):
    """The actor alone; its servers run on separate devices."""

    actor_worker_cls = CPUTrainingWorker
    ref_worker_cls = CPUTrainingWorker


class _OnCPU:
    """Mixin for engines without an accelerator."""

    engine_config: Any

    def _build_fsdp_module(self, module: Any) -> Any:
        if not self.engine_config.forward_only:
            return super()._build_fsdp_module(module)  # pyright: ignore[reportAttributeAccessIssue]
        # verl moves a frozen model to pinned memory, which needs an accelerator. This model is
        # already in the CPU's memory, so it is returned unchanged.
        precision = self.engine_config.mixed_precision or {}
        self._autocast_dtype = PrecisionType.to_dtype(precision.get("param_dtype", "bf16"))
        self._is_offload_param = self._is_offload_optimizer = False
        return module


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
class CPUEngineWithLMHead(_OnCPU, FSDPEngineWithLMHead):
    """Actor and reference."""


@EngineRegistry.register(model_type="value_model", backend=["fsdp2"], device="cpu")
class CPUEngineWithValueHead(_OnCPU, FSDPEngineWithValueHead):
    """Critic."""

    model_config: Any

    def _build_module(self) -> Any:
        # verl's loader of value heads asks for flash attention, which needs a GPU.
        from transformers import AutoModelForTokenClassification

        config = self.model_config.hf_config
        config.num_labels = 1
        config.classifier_dropout = 0.0
        return AutoModelForTokenClassification.from_pretrained(
            self.model_config.local_path,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
        )
